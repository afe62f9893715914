//! A worker as people and other programs see it.

use serde::{Deserialize, Serialize};

/// A worker. Its parts are one object in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Where it is.
    #[serde(flatten)]
    pub place: MemberPlace,
    /// What it does.
    #[serde(flatten)]
    pub work: MemberWork,
}

/// Where a worker is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberPlace {
    /// Its number: `w3`.
    pub id: String,
    /// The name of its site.
    pub site: String,
    /// Which part of the model it has, from 1; none: it waits for one.
    pub part: Option<u32>,
    /// Which copy of the model that is a part of, as they were put together.
    #[serde(default)]
    pub copy: Option<u64>,
    /// Host and device.
    pub device: String,
}

/// What a worker does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberWork {
    /// `waiting`, `preparing`, `healing`, `ready`, `training`, `finished` or `awaited`; `left` who had not
    /// done all when the run was finished.
    pub state: String,
    /// How well it keeps up.
    #[serde(default)]
    pub health: Health,
    /// Source of its data: `here`, `fetched` from other workers, `none` while no worker has it; null: not reported yet.
    #[serde(default)]
    pub data: Option<String>,
    /// The step that it computes.
    pub step: u64,
    /// Its speed over the last interval; none where it has not the first part of a copy, whose worker counts for all.
    pub tokens_per_s: Option<f64>,
    /// Hash of its synchronised state after the last round it reported.
    pub state_hash: Option<String>,
    /// The newest round that all have applied and to which it contributed; null unless it holds the first part of a copy, whose worker counts for all.
    #[serde(default)]
    pub contributed: Option<u64>,
    /// How many times as fast as at first it computes its part of the model; null where it has all of it, or where that is not known yet.
    #[serde(default)]
    pub speed: Option<f64>,
    /// The share of the values that it sent in its last exchange with other sites; null where others send for it, or in another form.
    #[serde(default)]
    pub density: Option<f64>,
    /// Bits of each of these values, with their share of scales.
    #[serde(default)]
    pub value_bits: Option<f64>,
    /// Seconds since it said something; in a finished run, as of its end.
    pub last_seen_s: f64,
}

/// How a worker that is here does. One that is lost is [gone](crate::GoneStatus).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should.
    #[default]
    Steady,
    /// Half of its last contributions, or more, were not in the result of their round: they came after its deadline, or were refused.
    Slow,
    /// It has said nothing for longer than it ever has lately. Where that goes on, it is given up.
    Silent,
}

impl Health {
    /// A word for a table; empty for who does as it should.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Steady => "",
            Self::Slow => "slow",
            Self::Silent => "silent",
        }
    }
}

/// Members in the durable state. Postcard does not know flattened fields, so a member is a pair there.
pub(super) mod durable {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{MemberPlace, MemberStatus, MemberWork};

    pub fn serialize<S: Serializer>(members: &[MemberStatus], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(members.iter().map(|member| (&member.place, &member.work)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<MemberStatus>, D::Error> {
        let members = Vec::<(MemberPlace, MemberWork)>::deserialize(deserializer)?;
        Ok(members.into_iter().map(|(place, work)| MemberStatus { place, work }).collect())
    }
}
