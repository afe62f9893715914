//! Benchmark cases.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::control;
use super::routed::RoutedWan;
use super::transfer::{Stream, send_all, times_of_bursts};
use super::wan::{Flow, Wan, WanSpec};
use crate::kit::clock::now;
use crate::kit::cpu;
use crate::kit::figures::{Figure, figure};

/// The emulator's thread, whose CPU time does not count.
const RELAYS: &str = "wan-relays";
/// Start-up, which steady figures exclude.
const WARM_UP: Duration = Duration::from_secs(3);
/// Duration of steady figures.
const STEADY: Duration = Duration::from_secs(6);
/// What bursts cover.
const BURSTS: u32 = 60;
/// What is computed between two of them.
const PAUSE: Duration = Duration::from_millis(60);
/// Four sequences of 128 tokens of width 384 in int8, with their scales; and one.
const BOUNDARY_BYTES: [usize; 2] = [199_680, 49_920];
/// What shares cover; flows converge within seconds.
const SHARING: Duration = Duration::from_secs(10);

/// A figure, with its part of the case; empty: all of it.
type OfPart = (&'static str, Figure);

/// One measurement over one path.
pub struct Case {
    pub spec: WanSpec,
    pub kind: Kind,
    pub in_quick: bool,
}

#[derive(Clone, Copy)]
pub enum Kind {
    /// Endless frames in one direction.
    OneWay,
    /// Endless frames of 8 KiB in one direction.
    SmallFrames,
    /// Endless frames in both directions.
    BothWays,
    /// This many bytes over a new connection, including the handshake.
    Cold(usize),
    /// Frames of so many bytes, each after a pause, as a boundary between ranks has them.
    Bursts(usize),
    /// Control messages beside endless frames.
    Control,
    /// Two connections with endless frames in the same direction, one started later.
    TwoFlows,
    /// One such connection, and one of TCP under BBR, started first or later.
    BesideTcp { tcp_first: bool },
}

/// All cases, by path and kind.
pub fn all() -> Vec<Case> {
    let paths = [
        (100.0, 25, 0.0, 30, false),
        (100.0, 25, 0.1, 30, true),
        (100.0, 25, 1.0, 30, false),
        (10.0, 50, 0.1, 5, false),
        (500.0, 40, 0.1, 100, false),
        (1_000.0, 5, 0.0, 100, false),
    ];
    let mut cases = Vec::new();
    for (mbit_per_s, delay_ms, loss_percent, cold_mb, in_quick) in paths {
        let spec = WanSpec { mbit_per_s, delay_ms, loss_percent };
        let mut kinds = vec![Kind::OneWay, Kind::Cold(cold_mb * 1_000_000)];
        if mbit_per_s < 1_000.0 {
            kinds.push(Kind::BothWays);
        }
        if loss_percent == 0.1 {
            kinds.push(Kind::SmallFrames);
        }
        if mbit_per_s < 500.0 && loss_percent == 0.1 {
            kinds.extend([Kind::Control, Kind::TwoFlows]);
            kinds.extend([true, false].map(|tcp_first| Kind::BesideTcp { tcp_first }));
        }
        cases.extend(kinds.into_iter().map(|kind| Case { spec, kind, in_quick }));
    }
    let narrow = WanSpec { mbit_per_s: 1.0, delay_ms: 25, loss_percent: 0.1 };
    cases.push(Case { spec: narrow, kind: Kind::BothWays, in_quick: false });
    for mbit_per_s in [100.0, 1_000.0] {
        let spec = WanSpec { mbit_per_s, delay_ms: 25, loss_percent: 0.1 };
        let of = |bytes| Case { spec, kind: Kind::Bursts(bytes), in_quick: false };
        cases.extend(BOUNDARY_BYTES.map(of));
    }
    cases
}

impl Case {
    pub fn name(&self) -> String {
        let WanSpec { mbit_per_s, delay_ms, loss_percent } = self.spec;
        let kind = match self.kind {
            Kind::OneWay => "one way".to_owned(),
            Kind::SmallFrames => "small frames".to_owned(),
            Kind::BothWays => "both ways".to_owned(),
            Kind::Cold(bytes) => format!("cold {} MB", bytes / 1_000_000),
            Kind::Bursts(bytes) => format!("bursts of {bytes} bytes"),
            Kind::Control => "control under bulk".to_owned(),
            Kind::TwoFlows => "two flows".to_owned(),
            Kind::BesideTcp { tcp_first: true } => "after a flow of TCP BBR".to_owned(),
            Kind::BesideTcp { tcp_first: false } => "before a flow of TCP BBR".to_owned(),
        };
        format!("{mbit_per_s}/{delay_ms}/{loss_percent} {kind}")
    }

    pub async fn measure(&self) -> Result<Vec<OfPart>> {
        match self.kind {
            Kind::OneWay => {
                let start = |flow: &Flow| Stream::start(&flow.client, &flow.server, self.spec);
                self.one_way(start).await
            }
            Kind::SmallFrames => self.one_way(|flow| Stream::small(&flow.client, &flow.server)).await,
            Kind::BothWays => self.both_ways().await,
            Kind::Cold(bytes) => self.cold(bytes).await,
            Kind::Bursts(bytes) => self.bursts(bytes).await,
            Kind::Control => self.control().await,
            Kind::TwoFlows => self.two_flows().await,
            Kind::BesideTcp { tcp_first } => self.beside_tcp(tcp_first).await,
        }
    }

    fn share(&self, part: &'static str, bytes_per_s: f64) -> OfPart {
        (part, figure("goodput_share", bytes_per_s / self.spec.bytes_per_s(), "ratio"))
    }

    async fn one_way(&self, start: impl Fn(&Flow) -> Result<Stream>) -> Result<Vec<OfPart>> {
        let wan = Wan::start(self.spec)?;
        let flow = wan.connect().await?;
        let stream = start(&flow)?;
        sleep(WARM_UP).await;
        let (from, cpu_before, bytes_before) =
            (now(), cpu::seconds("self", Some(RELAYS))?, stream.arrivals.sum());
        sleep(STEADY).await;
        let cpu_s = cpu::seconds("self", Some(RELAYS))? - cpu_before;
        let gigabytes = (stream.arrivals.sum() - bytes_before) as f64 / 1e9;
        let goodput = stream.arrivals.rate_between(from, now())?;
        Ok(vec![self.share("", goodput), ("", figure("cpu_both_ends", cpu_s / gigabytes, "s/GB"))])
    }

    async fn both_ways(&self) -> Result<Vec<OfPart>> {
        let wan = Wan::start(self.spec)?;
        let flow = wan.connect().await?;
        let right = Stream::start(&flow.client, &flow.server, self.spec)?;
        let left = Stream::start(&flow.server, &flow.client, self.spec)?;
        sleep(WARM_UP).await;
        let from = now();
        sleep(STEADY).await;
        let to = now();
        Ok(vec![
            self.share("forward", right.arrivals.rate_between(from, to)?),
            self.share("reverse", left.arrivals.rate_between(from, to)?),
        ])
    }

    async fn cold(&self, bytes: usize) -> Result<Vec<OfPart>> {
        let wan = Wan::start(self.spec)?;
        let from = now();
        let flow = wan.connect().await?;
        send_all(&flow.client, &flow.server, bytes, self.spec).await?;
        let goodput = bytes as f64 / now().duration_since(from).as_secs_f64();
        Ok(vec![self.share("", goodput)])
    }

    /// From sending to arrival, without half a round trip.
    async fn bursts(&self, bytes: usize) -> Result<Vec<OfPart>> {
        let wan = Wan::start(self.spec)?;
        let flow = wan.connect().await?;
        let mut times = times_of_bursts(&flow.client, &flow.server, bytes, (BURSTS, PAUSE)).await?;
        times.sort_unstable();
        let at = |quantile: f64| {
            let time = times[(quantile * (times.len() - 1) as f64).round() as usize];
            figure("after_half_a_round_trip", time.as_secs_f64() - self.spec.rtt().as_secs_f64() / 2.0, "s")
        };
        Ok(vec![("p50", at(0.5)), ("p25", at(0.25)), ("p75", at(0.75))])
    }

    async fn control(&self) -> Result<Vec<OfPart>> {
        let wan = Wan::start(self.spec)?;
        let flow = wan.connect().await?;
        let _bulk = Stream::start(&flow.client, &flow.server, self.spec)?;
        sleep(WARM_UP).await;
        let times = control::echo_times(&flow.client, &flow.server, STEADY).await?;
        let at = |quantile| {
            let latency = control::quantile(&times, quantile, self.spec.rtt());
            figure("control_latency_rtts", latency, "round trips")
        };
        Ok(vec![("p50", at(0.5)), ("p99", at(0.99))])
    }

    async fn two_flows(&self) -> Result<Vec<OfPart>> {
        let wan = Wan::start(self.spec)?;
        let (first, second) = (wan.connect().await?, wan.connect().await?);
        let first = Stream::start(&first.client, &first.server, self.spec).map(|stream| (first, stream))?;
        sleep(WARM_UP).await;
        let second =
            Stream::start(&second.client, &second.server, self.spec).map(|stream| (second, stream))?;
        sleep(WARM_UP).await;
        let from = now();
        sleep(SHARING).await;
        let to = now();
        let rates = [first.1.arrivals.rate_between(from, to)?, second.1.arrivals.rate_between(from, to)?];
        let total = rates[0] + rates[1];
        let smaller = rates[0].min(rates[1]) / total;
        Ok(vec![("", figure("smaller_flow_share", smaller, "ratio")), self.share("", total)])
    }

    async fn beside_tcp(&self, tcp_first: bool) -> Result<Vec<OfPart>> {
        let Some(wan) = RoutedWan::start(self.spec)? else { return Ok(Vec::new()) };
        let flow = wan.connect().await?;
        let mut tcp = None;
        if tcp_first {
            tcp = Some(wan.tcp_flow()?);
            sleep(WARM_UP).await;
        }
        let ours = Stream::start(&flow.client, &flow.server, self.spec)?;
        sleep(WARM_UP).await;
        let tcp = match tcp {
            Some(tcp) => tcp,
            None => wan.tcp_flow()?,
        };
        sleep(WARM_UP).await;
        let from = now();
        sleep(SHARING).await;
        let to = now();
        let [own, other] = [ours.arrivals.rate_between(from, to)?, tcp.arrivals.rate_between(from, to)?];
        let share = figure("own_share", own / (own + other), "ratio");
        Ok(vec![("", share), self.share("", own + other)])
    }
}
