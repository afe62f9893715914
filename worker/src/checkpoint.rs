//! tmp
use std::path::*; use std::sync::Arc; use std::collections::BTreeMap;
use longhaul_common::id::*; use longhaul_common::config::RunConfig; use longhaul_proto::control::message::*;
use crate::train::message::DeviceState;
pub struct Private { pub state: DeviceState, pub residuals: BTreeMap<FragmentId, Vec<f32>>, pub trained: Vec<Vec<u64>> }
pub struct Checkpoint { pub run: RunId, pub worker: WorkerId, pub next_round: Round, pub writes_model: bool, pub parameters: Arc<Vec<f32>>, pub private: Private }
pub struct Loaded { pub parameters: Vec<f32>, pub private: Option<Private> }
pub fn load(_: &Path, _: Round, _: Hash, _: WorkerId) -> anyhow::Result<Loaded> { anyhow::bail!("tmp") }
pub fn write(_: &RunConfig, f: &Path, c: &Checkpoint) -> anyhow::Result<(PathBuf, Hash)> { Ok((f.into(), crate::sync::hash_of(&c.parameters))) }
pub fn offers(_: &Path, _: RunId, _: WorkerId, _: usize) -> Vec<CheckpointOffer> { vec![] }
