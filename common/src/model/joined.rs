//! Modules of a layer whose matrices a family's files hold as one.

use crate::config::ModelKind;

/// Adjacent modules, and that of the files: its rows are theirs, one after the other.
type Joined = (&'static [&'static str], &'static str);

const PHI3: [Joined; 2] = [
    (&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "self_attn.qkv_proj"),
    (&["mlp.gate_proj", "mlp.up_proj"], "mlp.gate_up_proj"),
];

impl ModelKind {
    /// Returns the modules that the family's files join.
    #[must_use]
    pub fn joined(self) -> &'static [Joined] {
        if self == Self::Phi3 { &PHI3 } else { &[] }
    }

    /// Returns the name in files of a module, or of a tensor of one, that they join with others.
    #[must_use]
    pub fn joined_name(self, name: &str) -> Option<String> {
        self.joined().iter().find_map(|(parts, whole)| {
            let part = parts.iter().find(|part| name.contains(**part))?;
            Some(name.replace(part, whole))
        })
    }

    /// Returns the number of modules that a module of the files joins, given the end of its name; 1 for all others.
    #[must_use]
    pub fn parts_of(self, module: &str) -> u32 {
        let last = |name: &str| name.rsplit('.').next().map(str::to_owned);
        let of = self.joined().iter().find(|(_, whole)| last(whole) == last(module));
        of.map_or(1, |(parts, _)| parts.len() as u32)
    }
}
