//! The table of all workers, those that are gone included.

use serde::{Deserialize, Serialize};

use longhaul_run::{GoneStatus, Health, MemberStatus, Status};

/// A worker, present or departed. Unknown values are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its number: `w3`.
    pub id: String,
    /// Host and device.
    pub name: String,
    /// The name of its site.
    pub site: String,
    /// Which part of which copy of the model it has; null: none.
    pub role: Option<String>,
    /// As in the status; of one that is not here `left`, where that was in order, `kicked`, or `gone`.
    pub state: String,
    /// How well it keeps up; none of one that is not here.
    pub health: Option<Health>,
    /// Seconds since its last message.
    pub last_heard_s: Option<f64>,
    /// The step that it computes, or computed last.
    pub step: Option<u64>,
    /// Its speed over the last interval.
    pub tokens_per_s: Option<f64>,
    /// Why it is not here.
    pub why: Option<String>,
}

/// All workers: first the present ones, by number, then the departed ones.
pub fn members_of(status: &Status) -> Vec<Member> {
    let here = status.cluster.members.iter().map(|member| here(member, status.cluster.parts));
    here.chain(status.cluster.gone.iter().map(gone)).collect()
}

fn here(member: &MemberStatus, parts: u32) -> Member {
    let role = member.place.part.map(|part| match (member.place.copy, parts) {
        (_, 1) => "whole model".to_owned(),
        (Some(copy), parts) => format!("copy {copy}, part {part}/{parts}"),
        (None, parts) => format!("part {part}/{parts}"),
    });
    Member {
        id: member.place.id.clone(),
        name: member.place.device.clone(),
        site: member.place.site.clone(),
        role,
        state: member.work.state.clone(),
        health: Some(member.work.health),
        last_heard_s: Some(member.work.last_seen_s),
        step: Some(member.work.step),
        tokens_per_s: member.work.tokens_per_s,
        why: None,
    }
}

fn gone(gone: &GoneStatus) -> Member {
    Member {
        id: gone.id.clone(),
        name: gone.device.clone(),
        site: gone.site.clone(),
        role: None,
        state: gone.word().to_owned(),
        health: None,
        last_heard_s: gone.last_seen_s,
        step: gone.step,
        tokens_per_s: None,
        why: gone.why.clone(),
    }
}
