//! Connections of the HTTP API: so many at a time, of one address a quarter, and none for ever.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use longhaul_proto::transport::Strangers;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Half of the files that a process may have open by default. One address has a quarter: all that follow events, and as many besides.
const CONNECTIONS_MAX: usize = 512;
/// From the first byte of a request, or the end of the one before, to the end of its headers.
const HEADERS_MAX: Duration = Duration::from_secs(10);
/// Longer than any waiting call. A longer reader connects again.
const CONNECTION_MAX: Duration = Duration::from_secs(300);
/// Time for the remaining calls after that, or after the coordinator's end.
const LAST_CALL_MAX: Duration = Duration::from_secs(30);
/// Before the next try, where no connection can be taken: the process has as many files open as it may.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Serves these routes until `stopped` is set, and until the calls then in flight are answered.
pub async fn serve(listener: TcpListener, routes: Router, mut stopped: watch::Receiver<bool>) {
    let places = Strangers::new(CONNECTIONS_MAX);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, address)) => {
                // Without a place it is closed at once.
                let Some(place) = places.enter(address.ip()) else { continue };
                let (routes, stopped) = (routes.clone(), stopped.clone());
                connections.spawn(async move {
                    answer(stream, routes, stopped).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the HTTP API cannot take a connection");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn answer(stream: TcpStream, routes: Router, mut stopped: watch::Receiver<bool>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    tokio::select! {
        ended = connection.as_mut() => return tell(ended),
        () = sleep(CONNECTION_MAX) => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    if let Ok(ended) = timeout(LAST_CALL_MAX, connection).await {
        tell(ended);
    }
}

fn tell(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the HTTP API ended early");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn listening() -> (SocketAddr, watch::Sender<bool>, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let routes = Router::new().route("/", get(|| async { "here\n" }));
        (address, stop, tokio::spawn(serve(listener, routes, stopped)))
    }

    async fn ask(address: SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn who_never_ends_its_headers_is_hung_up_on() {
        let (address, _stop, _serving) = listening().await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        assert!(ask(address).await.unwrap().ends_with("here\n"), "others are served meanwhile");
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        let mut rest = Vec::new();
        // The end of the connection, whether with a word or with a reset.
        let _ = slow.read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
        let took = began.elapsed();
        assert!(took <= HEADERS_MAX + Duration::from_secs(1), "{took:?}");
    }

    #[tokio::test]
    async fn one_address_cannot_take_all_places() {
        let (address, _stop, _serving) = listening().await;
        let mut crowd = Vec::new();
        for _ in 0..CONNECTIONS_MAX / 4 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // An answer shows that it has its place.
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            assert!(stream.read(&mut [0; 512]).await.unwrap() > 0);
            crowd.push(stream);
        }
        assert!(!ask(address).await.is_ok_and(|answer| answer.contains("200 OK")));
        let elsewhere = tokio::net::TcpSocket::new_v4().unwrap();
        elsewhere.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = elsewhere.connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(stream.read(&mut [0; 512]).await.unwrap() > 0, "another address has places of its own");
    }

    #[tokio::test]
    async fn at_the_end_idle_connections_are_closed() {
        let (address, stop, serving) = listening().await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(idle.read(&mut [0; 512]).await.unwrap() > 0);
        stop.send_replace(true);
        serving.await.unwrap();
        assert_eq!(idle.read(&mut [0; 512]).await.unwrap_or(0), 0);
    }
}
