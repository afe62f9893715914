//! Devices that lack a requested feature.

use super::{assert_says, join_scenario, refusal};
use crate::scenario::Setup;

#[test]
fn a_worker_without_a_gpu_is_no_member_of_a_site_that_reduces_over_nccl() {
    let sync = "within_site = \"nccl\"";
    let scenario = Setup { sites: vec![4, 4], sync, ..Setup::default() }.gather();
    let token = scenario.cluster.token().unwrap();
    let worker = join_scenario(&scenario, "worker-cpu", &token, &["--device", "cpu"]);
    let words = ["within_site", "\"ring\" needs no GPU", "NCCL serves CUDA devices", "not cpu"];
    assert_says(&refusal(worker), &words);
}
