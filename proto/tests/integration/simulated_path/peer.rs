//! One end of a connection: quinn-proto's endpoint and an application that sends or receives bulk data.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use longhaul_proto::transport::congestion::RateController;
use quinn_proto::{
    Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint, Event,
    ReadError, StreamEvent, StreamId, Transmit, WriteError,
};

/// Streams over which the application stripes data, like bulk transfer.
const STREAMS: usize = 8;
/// Datagrams per call, as in quinn.
const DATAGRAMS_PER_TRANSMIT: usize = 10;
/// Payload of one write.
const CHUNK: &[u8] = &[0x5a; 64 * 1024];

/// A datagram in flight.
pub struct Datagram {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub ecn: Option<EcnCodepoint>,
    pub bytes: BytesMut,
}

pub struct Peer {
    pub address: SocketAddr,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    streams: Vec<StreamId>,
    writable: Vec<bool>,
    connected: bool,
    /// Bytes that the application has yet to send.
    to_send: u64,
    /// Bytes the application has read.
    received: u64,
}

impl Peer {
    pub fn new(endpoint: Endpoint, address: SocketAddr) -> Self {
        Self {
            address,
            endpoint,
            connection: None,
            streams: Vec::new(),
            writable: Vec::new(),
            connected: false,
            to_send: 0,
            received: 0,
        }
    }

    pub fn connect(&mut self, now: Instant, config: quinn_proto::ClientConfig, to: SocketAddr) {
        let connected = self.endpoint.connect(now, config, to, "localhost");
        self.connection = Some(connected.expect("the configuration is complete"));
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the round trips known to congestion control: without queues, and smoothed with them.
    pub fn round_trips(&self) -> (Duration, Duration) {
        let (_, connection) = self.connection.as_ref().expect("it is connected");
        let controller = connection.congestion_state().clone_box().into_any().downcast::<RateController>();
        (controller.expect("it is ours").round_trip().expect("packets were acknowledged"), connection.rtt())
    }

    /// Returns the delivery rate estimated by congestion control, in bytes per second.
    pub fn delivery_rate(&self) -> Option<f64> {
        let (_, connection) = self.connection.as_ref().expect("it is connected");
        let controller = connection.congestion_state().clone_box().into_any().downcast::<RateController>();
        controller.expect("it is ours").delivery_rate()
    }

    /// Offers `bytes` more for sending.
    pub fn send(&mut self, bytes: u64) {
        self.to_send = self.to_send.saturating_add(bytes);
    }

    /// Returns the next timeout of the connection.
    pub fn next_timeout(&mut self) -> Option<Instant> {
        self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout())
    }

    pub fn handle_datagram(&mut self, now: Instant, datagram: Datagram) {
        let mut response = Vec::new();
        let Datagram { from, ecn, bytes, .. } = datagram;
        match self.endpoint.handle(now, from, None, ecn, bytes, &mut response) {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut response, None);
                self.connection = Some(accepted.expect("the simulated client is genuine"));
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.handle_connection_event(event),
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    fn handle_connection_event(&mut self, event: ConnectionEvent) {
        if let Some((_, connection)) = &mut self.connection {
            connection.handle_event(event);
        }
    }

    /// Lets timers, application and connection act; returns the datagrams to send.
    pub fn drive(&mut self, now: Instant) -> Vec<Datagram> {
        if let Some((_, connection)) = &mut self.connection
            && connection.poll_timeout().is_some_and(|at| at <= now)
        {
            connection.handle_timeout(now);
        }
        self.exchange_endpoint_events();
        self.poll_events();
        self.write();
        self.transmit(now)
    }

    fn exchange_endpoint_events(&mut self) {
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.connection.as_mut().and_then(|(_, connection)| connection.poll()) {
            match event {
                Event::Connected => self.open_streams(),
                Event::ConnectionLost { reason } => panic!("the connection was lost: {reason}"),
                Event::Stream(StreamEvent::Opened { dir }) => self.read_opened(dir),
                Event::Stream(StreamEvent::Readable { id }) => self.read(id),
                Event::Stream(StreamEvent::Writable { id }) => {
                    if let Some(index) = self.streams.iter().position(|stream| *stream == id) {
                        self.writable[index] = true;
                    }
                }
                _ => {}
            }
        }
    }

    fn open_streams(&mut self) {
        self.connected = true;
        let Some((_, connection)) = &mut self.connection else { return };
        self.streams = std::iter::from_fn(|| connection.streams().open(Dir::Uni)).take(STREAMS).collect();
        self.writable = vec![true; self.streams.len()];
    }

    fn read_opened(&mut self, dir: Dir) {
        while let Some(id) = self.connection.as_mut().and_then(|(_, c)| c.streams().accept(dir)) {
            self.read(id);
        }
    }

    fn read(&mut self, id: StreamId) {
        let Some((_, connection)) = &mut self.connection else { return };
        let mut stream = connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.received += chunk.bytes.len() as u64,
                Ok(None) | Err(ReadError::Blocked) => break,
                Err(error) => panic!("a stream broke: {error}"),
            }
        }
        let _ = chunks.finalize();
    }

    fn write(&mut self) {
        let Some((_, connection)) = &mut self.connection else { return };
        for (index, stream) in self.streams.iter().enumerate() {
            while self.to_send > 0 && self.writable[index] {
                let length = CHUNK.len().min(usize::try_from(self.to_send).unwrap_or(usize::MAX));
                let mut chunks = [Bytes::from_static(&CHUNK[..length])];
                match connection.send_stream(*stream).write_chunks(&mut chunks) {
                    Ok(written) => self.to_send -= written.bytes as u64,
                    Err(WriteError::Blocked) => self.writable[index] = false,
                    Err(error) => panic!("a stream broke: {error}"),
                }
            }
        }
    }

    fn transmit(&mut self, now: Instant) -> Vec<Datagram> {
        let Some((_, connection)) = &mut self.connection else { return Vec::new() };
        let mut sent = Vec::new();
        let mut buffer = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, DATAGRAMS_PER_TRANSMIT, &mut buffer) {
            let datagrams = buffer[..transmit.size].chunks(transmit.segment_size.unwrap_or(transmit.size));
            let Transmit { destination: to, ecn, .. } = transmit;
            let from = self.address;
            sent.extend(datagrams.map(|bytes| Datagram { from, to, ecn, bytes: BytesMut::from(bytes) }));
            buffer.clear();
        }
        sent
    }
}
