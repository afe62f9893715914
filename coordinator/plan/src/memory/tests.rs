//! Which memory is too small, of machines with GPUs and without.

use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_run_toml::{Gpt2, RunToml};

use super::super::search::tests::{GIB, topology};
use super::super::{NoPlan, choose};
use super::*;

/// 1.9 billion parameters, `auto`: 78 bytes of each in a machine; 24 of them on a GPU, and 66 in the machine around it.
fn workload() -> Workload {
    let run = RunToml::new("r").workers(2).steps(9).batch(16).set("train.micro_batch", 1);
    let run =
        run.gpt2(Gpt2 { layers: 36, width: 2048, heads: 16, context: 1024 }).set("model.vocabulary", 50_257);
    let config = RunConfig::parse(&run.to_string()).unwrap();
    Workload::of(&config, &ModelSpec::resolve(&config.model, 50_257).unwrap())
}

/// One machine of two such devices, of which a GPU's machine has so much besides.
fn machine(memory_gib: f64, host_memory_gib: Option<f64>) -> Topology {
    let mut machine = topology(&[&[(1e13, memory_gib * GIB); 2]], 100.0, 50.0);
    let host_memory_bytes = host_memory_gib.map(|gib| gib * GIB);
    machine.sites[0].devices.iter_mut().for_each(|device| device.host_memory_bytes = host_memory_bytes);
    machine
}

fn ranks(machine: &Topology) -> Result<u32, NoPlan> {
    choose(machine, &workload()).map(|choice| choice.best.0.pipeline.ranks)
}

#[test]
fn a_gpu_of_80_gib_holds_a_model_that_a_machine_of_80_gib_does_not() {
    assert_eq!(ranks(&machine(80.0, Some(512.0))).unwrap(), 1);
    assert_eq!(ranks(&machine(80.0, None)).unwrap(), 2, "78 bytes of a parameter are 150 GB");
    // The machine around two GPUs has room for half of the model each.
    assert_eq!(ranks(&machine(80.0, Some(80.0))).unwrap(), 2);
    let choice = choose(&machine(80.0, Some(512.0)), &workload()).unwrap();
    let (device, host) = (choice.best.1.memory_bytes[0], choice.best.1.host_memory_bytes[0]);
    let parameters = workload().blocks.iter().map(|block| block.parameters).sum::<u64>() as f64;
    assert!(device > 24.0 * parameters && device < 80.0 * GIB && host == 66.0 * parameters);
    assert_eq!(choose(&machine(160.0, None), &workload()).unwrap().best.1.host_memory_bytes, [0.0]);
}

#[test]
fn what_fits_neither_memory_says_which_one_is_too_small_and_what_would_help() {
    let refused = |memory_gib, host_gib| ranks(&machine(memory_gib, host_gib)).unwrap_err();
    let of = |refused: &NoPlan| match refused.closest {
        Unfit::Memory { memory, .. } => memory,
        Unfit::Schedule(_) => panic!("{refused}"),
    };
    for (refused, memory, cause, remedy) in [
        (refused(80.0, Some(8.0)), Memory::Host, "of host memory", "fewer GPUs each"),
        (refused(8.0, Some(512.0)), Memory::Gpu, "of its GPU's memory", "smaller train.micro_batch"),
        (refused(8.0, None), Memory::Machine, "but has 8.59 GB", "smaller train.micro_batch"),
    ] {
        let told = refused.to_string();
        assert_eq!(of(&refused), memory, "{told}");
        assert!(told.contains(cause) && told.contains(remedy), "{told}");
    }
    let told = refused(80.0, Some(8.0)).to_string();
    assert!(
        told.contains("on GPUs, which have 171.8 GB in total") && told.contains("which has 17.2 GB"),
        "{told}"
    );
}

/// Each must have room in its own memories.
#[test]
fn a_rank_may_be_on_a_gpu_here_and_on_a_machine_without_one_there() {
    let mixed = |machine_gib: f64, gpu_gib: f64| {
        let mut machine = machine(gpu_gib, Some(512.0));
        machine.sites[0].devices[1] = Device {
            memory_bytes: machine_gib * GIB,
            host_memory_bytes: None,
            ..machine.sites[0].devices[1]
        };
        machine
    };
    let copies = |machine: Topology| choose(&machine, &workload()).unwrap().best.0.replicas.len();
    assert_eq!(copies(mixed(160.0, 80.0)), 2);
    // The one without a GPU, though it has more memory, holds no copy, or else the GPU does not.
    assert_eq!(copies(mixed(120.0, 80.0)), 1);
    assert_eq!(copies(mixed(160.0, 40.0)), 1);
}

#[test]
fn a_group_has_of_each_memory_what_its_smallest_member_has() {
    let mut gpus = machine(80.0, Some(64.0));
    gpus.sites[0].devices[1] =
        Device { memory_bytes: 40.0 * GIB, host_memory_bytes: Some(99.0 * GIB), ..gpus.sites[0].devices[1] };
    let group = |machine: &Topology| machine.in_groups(2).unwrap().sites[0].devices[0];
    let of = |device: Device| (device.memory_bytes / GIB, device.host_memory_bytes.map(|bytes| bytes / GIB));
    assert_eq!(of(group(&gpus)), (40.0, Some(64.0)));
    assert_eq!(of(group(&machine(80.0, None))), (80.0, None));
    // Where one has no GPU, all are taken for such.
    gpus.sites[0].devices[0].host_memory_bytes = None;
    assert_eq!(of(group(&gpus)), (40.0, None));
}
