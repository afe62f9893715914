//! Congestion control over simulated long links, in virtual time (targets in `docs/transport.md`).

mod simulated_path;

use std::time::Duration;

use simulated_path::{Flow, LinkSpec, Path, Side};

/// More than any test transfers.
const ENDLESS: u64 = 1 << 40;
const WARM_UP: Duration = Duration::from_secs(3);

fn share(path_bytes_per_s: f64, goodput: f64) -> f64 {
    goodput / path_bytes_per_s
}

/// Goodput over the link's rate of one endless transfer after start-up.
fn steady_one_way(spec: LinkSpec, seed: u64) -> (f64, Path) {
    let mut path = Path::symmetric(spec, seed);
    let flow = path.connect();
    path.send(flow, Side::Left, ENDLESS);
    path.run_for(WARM_UP);
    let goodput = path.goodput(&[(flow, Side::Right)], Duration::from_secs(8));
    (share(spec.bytes_per_s(), goodput[0]), path)
}

#[test]
fn explore() {
    for (mbit, delay, loss) in [(100.0, 25, 0.0), (100.0, 25, 0.1), (100.0, 25, 1.0), (10.0, 50, 0.1), (500.0, 40, 0.1), (100.0, 25, 3.0), (1000.0, 5, 0.0)] {
        let spec = LinkSpec::new(mbit, delay, loss);
        let (share, path) = steady_one_way(spec, 1);
        let from = path.now() - Duration::from_secs(8);
        let rtt = spec.delay * 2;
        println!("{mbit}/{delay}/{loss} one way {share:.3} queue p50 {:.2} p99 {:.2} RTT overflow {} of {}",
          path.rightward.wait_quantile(from, 0.5).as_secs_f64() / rtt.as_secs_f64(),
          path.rightward.wait_quantile(from, 0.99).as_secs_f64() / rtt.as_secs_f64(), path.rightward.overflowed, path.rightward.accepted);
        let mut path = Path::symmetric(spec, 7);
        let flow = path.connect();
        path.send(flow, Side::Left, ENDLESS);
        path.send(flow, Side::Right, ENDLESS);
        path.run_for(WARM_UP);
        let g = path.goodput(&[(flow, Side::Right), (flow, Side::Left)], Duration::from_secs(10));
        let from = path.now() - Duration::from_secs(8);
        println!("     both ways {:.3} {:.3} queue p50 {:.2} {:.2} p99 {:.2}", g[0]/spec.bytes_per_s(), g[1]/spec.bytes_per_s(), 
          path.rightward.wait_quantile(from, 0.5).as_secs_f64() / rtt.as_secs_f64(),
          path.leftward.wait_quantile(from, 0.5).as_secs_f64() / rtt.as_secs_f64(),
          path.rightward.wait_quantile(from, 0.99).as_secs_f64() / rtt.as_secs_f64());
        let mut path = Path::symmetric(spec, 9);
        let start = path.now();
        let flow = path.connect();
        let total = (mbit * 0.3e6) as u64; 
        path.send(flow, Side::Left, total);
        path.run_until(Duration::from_secs(60), |p| p.received(flow, Side::Right) >= total);
        println!("     cold {:.3}", total as f64 / (path.now() - start).as_secs_f64() / spec.bytes_per_s());
        let mut path = Path::symmetric(spec, 9);
        let a = path.connect();
        path.send(a, Side::Left, ENDLESS);
        path.run_for(WARM_UP);
        let b = path.connect();
        path.send(b, Side::Left, ENDLESS);
        path.run_for(Duration::from_secs(2));
        for _ in 0..3 {
        let g = path.goodput(&[(a, Side::Right), (b, Side::Right)], Duration::from_secs(4));
        println!("     two flows {:.3} {:.3}", g[0]/spec.bytes_per_s(), g[1]/spec.bytes_per_s());
        }
    }
    let _ : Option<Flow> = None;
}
