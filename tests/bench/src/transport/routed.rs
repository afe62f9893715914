//! The same paths between two network namespaces, for TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use longhaul_emulator::tun::{SideConfig, TunError, TunPair};
use longhaul_proto::transport::{bind_udp, endpoint};
use socket2::{Domain, Socket, Type};

use super::transfer::Arrivals;
use super::wan::{Flow, WanSpec, tls};
use crate::kit::progress;

/// Bytes of one TCP read or write.
const TCP_BYTES: usize = 64 << 10;

/// A running path.
pub struct RoutedWan {
    sides: [SideConfig; 2],
    _pair: TunPair,
}

/// Endless bytes over TCP. Dropping it ends them.
pub struct TcpFlow {
    pub arrivals: Arrivals,
    ends: [TcpStream; 2],
    threads: Vec<JoinHandle<()>>,
}

impl RoutedWan {
    /// Returns `None`, with a notice, if this user or machine cannot create one.
    pub fn start(spec: WanSpec) -> Result<Option<Self>> {
        let name = |side: &str| format!("longhaul-{side}-{}", std::process::id());
        let sides =
            [SideConfig::new(&name("a"), "10.79.0.1/24")?, SideConfig::new(&name("b"), "10.79.0.2/24")?];
        let [forward, reverse] = spec.links()?;
        match TunPair::start(&sides[0], &sides[1], forward, reverse) {
            Ok(pair) => Ok(Some(Self { sides, _pair: pair })),
            Err(error @ TunError::Unavailable { .. }) => {
                progress(format!("skipped: {error}"));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Connects both sides with our transport.
    pub async fn connect(&self) -> Result<Flow> {
        let (server_tls, client_tls) = tls()?;
        let socket = |side: &SideConfig| {
            let address = SocketAddr::new(IpAddr::V4(side.address), 0);
            anyhow::Ok(side.within(|| bind_udp(address))??.0)
        };
        let [dialling, listening] = [socket(&self.sides[0])?, socket(&self.sides[1])?];
        let listening = endpoint(listening, Some(server_tls))?;
        let through = listening.local_addr()?;
        Flow::between(endpoint(dialling, None)?, listening, through, client_tls).await
    }

    /// Starts a flow of TCP under BBR in the same direction.
    pub fn tcp_flow(&self) -> Result<TcpFlow> {
        let [from, to] = &self.sides;
        let listener = to.within(|| TcpListener::bind((to.address, 0)))??;
        let address = listener.local_addr()?;
        let sender = from.within(|| -> Result<TcpStream> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_tcp_congestion(b"bbr").context("this kernel has no BBR for TCP")?;
            socket.connect(&address.into())?;
            Ok(socket.into())
        })??;
        let (receiver, _) = listener.accept()?;
        TcpFlow::start(sender, receiver)
    }
}

impl TcpFlow {
    fn start(sender: TcpStream, receiver: TcpStream) -> Result<Self> {
        let arrivals = Arrivals::default();
        let ends = [sender.try_clone()?, receiver.try_clone()?];
        let (mut sending, mut receiving, noting) = (sender, receiver, arrivals.clone());
        let threads = vec![
            std::thread::spawn(move || while sending.write_all(&[7; TCP_BYTES]).is_ok() {}),
            std::thread::spawn(move || {
                let mut buffer = vec![0; TCP_BYTES];
                loop {
                    match receiving.read(&mut buffer) {
                        Ok(0) => return,
                        Ok(bytes) => noting.note(bytes as u64),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => return,
                    }
                }
            }),
        ];
        Ok(Self { arrivals, ends, threads })
    }
}

impl Drop for TcpFlow {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
