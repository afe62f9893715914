//! Machines and links, as a user writes them for `coordinator plan`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_plan::Topology;

fuzz_target!(|text: &str| {
    if let Ok(topology) = Topology::parse(text) {
        for id in topology.devices() {
            let device = topology.device(id);
            assert!(device.flops_per_s > 0.0 && device.memory_bytes > 0.0);
        }
    }
});
