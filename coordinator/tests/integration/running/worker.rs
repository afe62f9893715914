//! Workers that speak the protocol over real QUIC and train nothing.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use longhaul_common::id::{Generation, Round};
use longhaul_proto::control::message::{Heartbeat, Join, ToCoordinator, ToWorker};
use longhaul_proto::control::{ControlReceiver, ControlSender, enrol, open};
use longhaul_proto::identity::{Identity, PeerName, Token, control_client};
use longhaul_proto::transport::endpoint;
use quinn::{Connection, Endpoint};

use super::Running;

/// A worker that has enrolled.
pub struct Worker {
    pub endpoint: Endpoint,
    pub identity: Identity,
    pub coordinator: SocketAddr,
    pub incarnation: u64,
    /// What it says of itself.
    pub site: String,
    pub device: String,
}

/// Its conversation with the coordinator.
pub struct Control {
    pub connection: Connection,
    pub sender: ControlSender<ToCoordinator>,
    pub receiver: ControlReceiver<ToWorker>,
}

pub fn dialler() -> Endpoint {
    endpoint(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), None).unwrap()
}

/// The address and the token in a join line.
pub fn parts(line: &str) -> (SocketAddr, Token) {
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[3]), ("worker", "join", "--token"));
    (words[2].parse().unwrap(), words[4].parse().unwrap())
}

impl Worker {
    pub async fn enrol(running: &Running, site: &str) -> Self {
        let (coordinator, token) = parts(&running.join_line);
        let endpoint = dialler();
        let identity = enrol(&endpoint, coordinator, &token, site).await.unwrap();
        let incarnation = u64::from(identity.worker().0) + 1;
        let site = format!("site-{}", identity.worker());
        Self { endpoint, identity, coordinator, incarnation, site, device: "a test".to_owned() }
    }

    pub async fn connect(&self) -> Option<Control> {
        let config = quinn::ClientConfig::new(control_client(&self.identity).unwrap());
        let name = PeerName::Coordinator.in_run(self.identity.run());
        let connection = self.endpoint.connect_with(config, self.coordinator, &name).unwrap().await.ok()?;
        let (sender, receiver) = open(&connection).await.ok()?;
        Some(Control { connection, sender, receiver })
    }

    pub async fn join(&self, held: Option<(Generation, Round)>) -> Option<Control> {
        let control = self.connect().await?;
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 9));
        let join = Join {
            incarnation: self.incarnation,
            site: self.site.clone(),
            lan_address: address,
            wan_address: address,
            device: self.device.clone(),
            memory_bytes: 1 << 34,
            host_memory_bytes: None,
            held,
            too_late_ms: None,
            checkpoints: Vec::new(),
        };
        control.sender.send(&ToCoordinator::Join(join)).unwrap();
        Some(control)
    }

    /// Comes back until somebody answers.
    pub async fn join_again(&self, held: Option<(Generation, Round)>) -> Control {
        loop {
            if let Some(control) = self.join(held).await {
                return control;
            }
        }
    }
}

impl Control {
    pub async fn hear(&mut self) -> ToWorker {
        loop {
            tokio::select! {
                heard = self.receiver.receive() => match heard.unwrap().expect("the coordinator has more to say") {
                    ToWorker::Speak => self.say(ToCoordinator::Heartbeat(Heartbeat::default())),
                    heard => return heard,
                },
                () = tokio::time::sleep(Duration::from_millis(500)) => self.say(ToCoordinator::Heartbeat(Heartbeat::default())),
            }
        }
    }

    pub fn say(&self, message: ToCoordinator) {
        self.sender.send(&message).unwrap();
    }
}
