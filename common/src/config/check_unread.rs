//! Keys of `[sync]` that have no effect with the others: they are refused with the remedy, as the user
//! expects an effect.

use super::ConfigError;
use super::sync::{
    Application, LateRule, ResultForm, RobustRule, SelectionRule, Source, SyncConfig, Transform,
};

/// Whether some keys have no effect; the keys; the reason.
type Rule = (bool, &'static [&'static str], &'static str);

impl SyncConfig {
    /// Refuses a key without effect that has a value of its own. Values from a preset or derived from other
    /// keys are not the user's, and a value that equals the actual behaviour is accepted.
    pub(super) fn check_unread(&self) -> Result<(), ConfigError> {
        let rules = [self.unread_of_chains(), self.unread_of_controller(), self.unread_of_rest()].concat();
        let reason = |key| rules.iter().find(|(is_unread, keys, _)| *is_unread && keys.contains(&key));
        let mut own = self.own_keys().into_iter();
        let refused = own.find_map(|(key, value)| reason(key).map(|(.., reason)| (key, value, *reason)));
        refused.map_or(Ok(()), |(key, value, reason)| Err(ConfigError::value(key, value, reason)))
    }

    /// Returns the rules for contributions, in the warm-up and after it, and results.
    fn unread_of_chains(&self) -> Vec<Rule> {
        vec![
            (
                self.adapt,
                &[
                    "sync.selection",
                    "sync.keep",
                    "sync.values",
                    "sync.rounding",
                    "sync.warmup_keep",
                    "sync.warmup_values",
                    "sync.result_keep",
                    "sync.result_values",
                ],
                "with adapt = true, which preset = \"auto\" has, the controller chooses which values are sent and in which format, by what the \
                 links carry: bound it with bits_min and bits_max instead, or take adapt = false",
            ),
            (
                !self.has_warmup(),
                &["sync.warmup_every", "sync.warmup_keep", "sync.warmup_redundant", "sync.warmup_values"],
                "there is no warm-up: take a warmup_share or warmup_rounds above 0, or leave it out",
            ),
            (
                self.warmup_rounds == 0,
                &["sync.warmup_share_max"],
                "it bounds warmup_rounds, and there are none: give them, or leave it out",
            ),
            (
                !self.reads_warmup_keep(),
                &["sync.warmup_keep"],
                "this warm-up exchanges gradients, and all of them: bound its bytes with warmup_values, or leave it out",
            ),
            (
                !self.reads_keep(),
                &["sync.keep"],
                "only selection = \"top-k\" and \"threshold\" have a number of values: take one of them, or leave it out",
            ),
            (
                self.result == ResultForm::Bundle,
                &["sync.result_keep", "sync.result_values"],
                "a bundle holds the contributions as they came: take result = \"mean\" or \"union\", or leave it out",
            ),
            (
                self.has_residual() && !self.leaves_something(),
                &["sync.error_decay"],
                "all values are sent in f32, which leaves nothing behind: send fewer, or with fewer bits, or leave it out",
            ),
        ]
    }

    /// Returns the rules for the controller.
    fn unread_of_controller(&self) -> Vec<Rule> {
        vec![
            (
                !self.adapt,
                &[
                    "sync.every_max",
                    "sync.early_share",
                    "sync.target_utilisation",
                    "sync.bits_min",
                    "sync.bits_max",
                    "sync.backlog_max",
                ],
                "only the controller goes by it, and there is none: take adapt = true, or leave it out",
            ),
            (
                self.source.is_gradient(),
                &["sync.every_max"],
                "gradients are exchanged after each step, whatever the links are like: take source = \"delta\", or leave it out",
            ),
            (
                self.source.is_gradient(),
                &["sync.backlog_max"],
                "what waits in error feedback is watched where members train by themselves: take source = \"delta\", or bits_min in its place",
            ),
        ]
    }

    /// Returns the rules for processing before sending, of results, and by owners.
    fn unread_of_rest(&self) -> Vec<Rule> {
        let mixes = self.late == LateRule::Mix && self.overlap > 0;
        vec![
            (
                self.source != Source::CorrectedGradient,
                &["sync.momentum"],
                "only source = \"corrected-gradient\" has it (see outer_momentum for that of outer steps, and train.beta1 for AdamW's): take that, \
                 or leave it out",
            ),
            (
                self.apply != Application::Outer,
                &["sync.outer_learning_rate", "sync.outer_momentum"],
                "no outer step is made: take source = \"delta\" with apply = \"outer\", or leave it out (the size of other steps is \
                 train.learning_rate)",
            ),
            (
                self.late == LateRule::Mix && !mixes,
                &["sync.late"],
                "nothing is trained while a result is waited for: take an overlap above 0, or late = \"keep\"",
            ),
            (
                !mixes,
                &["sync.mix"],
                "only late = \"mix\" with an overlap above 0 mixes: take both, or leave it out",
            ),
            (
                self.robust != RobustRule::Trim,
                &["sync.trim"],
                "only robust = \"trim\" has it: take that, or leave it out",
            ),
            (
                self.rank > 0 && !self.has_warmup() && self.norm_limit != 0.0,
                &["sync.norm_limit"],
                "norms of thin factors are not judged, and there is no warm-up: take norm_limit = 0, or rank = 0",
            ),
        ]
    }

    /// Whether some values of a whole fragment are selected.
    pub(super) fn selects_values(&self) -> bool {
        matches!(self.selection, SelectionRule::TopK | SelectionRule::Threshold)
    }

    /// Whether some values of a contribution wait, by a selection or a mask.
    pub(super) fn leaves_values_out(&self) -> bool {
        let selects = self.selects_values() || self.selection == SelectionRule::Visible;
        selects || self.random_keep < self.chunk
    }

    /// Whether `keep` determines the amount sent after the warm-up.
    pub(super) fn reads_keep(&self) -> bool {
        !self.adapt && self.selects_values()
    }

    /// Whether `warmup_keep` determines the amount sent in the warm-up.
    pub(super) fn reads_warmup_keep(&self) -> bool {
        !self.adapt && self.has_warmup() && !self.opens_with_gradients()
    }

    /// Whether `result_keep` determines the amount published.
    pub(super) fn reads_result_keep(&self) -> bool {
        !self.adapt && self.result != ResultForm::Bundle
    }

    /// Whether recompressed means leave a residual, which stays with the owner.
    #[must_use]
    pub fn results_leave_something(&self) -> bool {
        let is_lossy = self.adapt || self.result_keep < self.chunk || !self.result_values.is_exact();
        self.result != ResultForm::Bundle && self.rank == 0 && is_lossy
    }

    /// Whether selection or rounding leaves a residual, in the warm-up or after it.
    #[must_use]
    pub fn leaves_something(&self) -> bool {
        let is_exact = !self.leaves_values_out()
            && self.values.is_exact()
            && self.transform == Transform::None
            && !self.adapt;
        let opens_exactly = self.warmup_values.is_exact() && !self.warmup_selects();
        !is_exact || self.has_warmup() && !opens_exactly
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RunConfig, SyncPreset};
    use super::*;

    const SMALL: &str = "[run]\nname = \"small\"\nworkers = 4\nsteps = 100\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\n\
                         heads = 1\ncontext = 8\n[data]\npath = \"text.txt\"\nsequence_length = 8\n[sync]\n";

    fn with(sync: &str) -> Result<SyncConfig, String> {
        match RunConfig::parse(&format!("{SMALL}{sync}")) {
            Ok(config) => Ok(config.sync),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Asserts that an accepted configuration is accepted again when written with every key.
    fn assert_written_alike(sync: &str) {
        let config =
            RunConfig::parse(&format!("{SMALL}{sync}")).unwrap_or_else(|error| panic!("{sync}: {error}"));
        let again = RunConfig::parse(&config.to_toml().unwrap());
        assert_eq!(again.unwrap_or_else(|error| panic!("{sync}, written: {error}")), config);
    }

    /// A value that no preset has.
    const OTHERS: [(&str, &str); 30] = [
        ("every_max", "333"),
        ("late", "\"mix\""),
        ("mix", "0.3"),
        ("warmup_rounds", "7"),
        ("warmup_share_max", "0.3"),
        ("warmup_every", "1"),
        ("warmup_redundant", "\"always\""),
        ("warmup_keep", "9"),
        ("warmup_values", "\"f16\""),
        ("selection", "\"threshold\""),
        ("keep", "7"),
        ("values", "\"f16\""),
        ("rounding", "\"stochastic\""),
        ("momentum", "0.7"),
        ("error_decay", "0.7"),
        ("result", "\"mean\""),
        ("result_keep", "8"),
        ("result_values", "\"f16\""),
        ("norm_limit", "44.5"),
        ("trim", "3"),
        ("outer_learning_rate", "0.3"),
        ("outer_momentum", "0.3"),
        ("early_share", "0.3"),
        ("target_utilisation", "0.3"),
        ("bits_min", "1.3"),
        ("bits_max", "6.3"),
        ("backlog_max", "3.5"),
        ("fragment_values", "65536"),
        ("deadline_mads", "3.0"),
        ("chunk", "1024"),
    ];

    #[test]
    fn what_the_controller_chooses_is_refused_with_the_bounds_that_it_has() {
        for adapting in [
            "preset = \"auto\"",
            "preset = \"sparse-local\"\nadapt = true",
            "preset = \"dense\"\nadapt = true\noverlap = 1",
        ] {
            for (line, told) in [
                ("keep = 256", "sync.keep = 256"),
                ("values = \"int4\"", "sync.values = int4"),
                ("selection = \"threshold\"", "sync.selection = threshold"),
                ("values = \"int8\"\nrounding = \"stochastic\"", "sync.values = int8"),
                ("warmup_keep = 128", "sync.warmup_keep = 128"),
                ("warmup_values = \"f16\"", "sync.warmup_values = f16"),
                ("result = \"mean\"\nresult_keep = 128", "sync.result_keep = 128"),
                ("result = \"mean\"\nresult_values = \"f16\"", "sync.result_values = f16"),
            ] {
                let message = with(&format!("{adapting}\n{line}")).unwrap_err();
                let reason = "the controller chooses which values are sent and in which format";
                let remedy = "bound it with bits_min and bits_max instead, or take adapt = false";
                let says = |words| message.contains(words);
                assert!(
                    message.starts_with(told) && says(reason) && says(remedy),
                    "{adapting}, {line}: {message}"
                );
            }
        }
    }

    #[test]
    fn a_key_that_nothing_reads_is_refused_by_name_with_what_would_read_it() {
        for (sync, words) in [
            ("preset = \"dense\"\nkeep = 8", "sync.keep = 8: only selection = \"top-k\" and \"threshold\""),
            (
                "preset = \"cocktail\"\nselection = \"all\"\nkeep = 8",
                "sync.keep = 8: only selection = \"top-k\"",
            ),
            ("preset = \"dense\"\nwarmup_values = \"f16\"", "sync.warmup_values = f16: there is no warm-up"),
            ("preset = \"diloco\"\nwarmup_every = 5", "sync.warmup_every = 5: there is no warm-up"),
            ("preset = \"dgc\"\nwarmup_keep = 8", "sync.warmup_keep = 8: this warm-up exchanges gradients"),
            ("preset = \"auto\"\nadapt = false\nwarmup_keep = 8", "sync.warmup_keep = 8: this warm-up"),
            ("preset = \"dgc\"\nresult_values = \"f16\"", "sync.result_values = f16: a bundle holds"),
            ("preset = \"sparse-local\"\nresult_keep = 8", "sync.result_keep = 8: a bundle holds"),
            ("preset = \"dense\"\nerror_decay = 0.5", "sync.error_decay = 0.5: all values are sent in f32"),
            ("preset = \"diloco\"\nerror_decay = 1", "sync.error_decay = 1.0: all values are sent in f32"),
            (
                "preset = \"sparse-local\"\nbits_max = 4",
                "sync.bits_max = 4.0: only the controller goes by it",
            ),
            ("preset = \"auto\"\nadapt = false\nevery_max = 9", "sync.every_max = 9: only the controller"),
            (
                "preset = \"dense\"\nadapt = true\noverlap = 1\nevery_max = 9",
                "sync.every_max = 9: gradients are",
            ),
            (
                "preset = \"dense\"\nadapt = true\noverlap = 1\nbacklog_max = 9",
                "sync.backlog_max = 9.0: what waits",
            ),
            (
                "preset = \"sparse-local\"\nmomentum = 0.5",
                "sync.momentum = 0.5: only source = \"corrected-gradient\"",
            ),
            (
                "preset = \"dense\"\nouter_learning_rate = 0.5",
                "sync.outer_learning_rate = 0.5: no outer step is made",
            ),
            ("preset = \"demo\"\nouter_momentum = 0.5", "sync.outer_momentum = 0.5: no outer step is made"),
            ("preset = \"diloco\"\nlate = \"mix\"", "sync.late = mix: nothing is trained while"),
            ("preset = \"sparse-local\"\nmix = 0.25", "sync.mix = 0.25: only late = \"mix\""),
            (
                "preset = \"streaming-diloco\"\noverlap = 0\nmix = 0.25",
                "sync.mix = 0.25: only late = \"mix\"",
            ),
            ("preset = \"diloco\"\nrobust = \"clip\"\ntrim = 2", "sync.trim = 2: only robust = \"trim\""),
            (
                "preset = \"powersgd\"\nwarmup_share = 0\nnorm_limit = 20",
                "sync.norm_limit = 20.0: norms of thin factors",
            ),
        ] {
            let message = with(sync).unwrap_err();
            assert!(message.starts_with(words), "{sync}: {message}");
        }
    }

    #[test]
    fn a_key_that_is_read_is_accepted() {
        for sync in [
            "preset = \"auto\"\nbits_min = 0.1\nbits_max = 2.1\nevery_max = 1\nbacklog_max = 0\nearly_share = 0",
            "preset = \"auto\"\nadapt = false\nkeep = 8\nvalues = \"int4\"\nrounding = \"stochastic\"\nresult_keep = 8",
            "preset = \"auto\"\nresult = \"bundle\"\nlate = \"mix\"\nmix = 0.25",
            "preset = \"sparse-local\"\nkeep = 8\nwarmup_keep = 8\nwarmup_values = \"f16\"\nwarmup_every = 5",
            "preset = \"sparse-local\"\nresult = \"union\"\nresult_keep = 8\nresult_values = \"f16\"",
            "preset = \"dense\"\nvalues = \"bf16\"\nerror_decay = 0.5",
            "preset = \"dense\"\nwarmup_rounds = 5\nwarmup_values = \"int8\"\nerror_decay = 0.5",
            "preset = \"diloco\"\nrandom_keep = 64\nerror_decay = 1\nouter_momentum = 0.5",
            "preset = \"diloco\"\nrobust = \"trim\"\ntrim = 1\nnorm_limit = 5",
            "preset = \"dgc\"\nmomentum = 0.5\nkeep = 8\nwarmup_values = \"f16\"",
            "preset = \"powersgd\"\nnorm_limit = 20",
            // They equal the actual behaviour.
            "preset = \"powersgd\"\nwarmup_share = 0\nnorm_limit = 0",
            "preset = \"dense\"\nrank = 4\nerror_decay = 0",
            "preset = \"streaming-diloco\"\nsource = \"gradient\"\napply = \"inner\"\nevery = 1\noverlap = 0\ngroups = 1\nlate = \"keep\"",
        ] {
            assert_written_alike(sync);
        }
    }

    /// Formats, counts and `every_max` follow other keys, and are then written out though they may have no
    /// effect.
    #[test]
    fn what_follows_from_other_keys_is_no_value_of_its_own() {
        for sync in [
            "preset = \"dense\"\nvalues = \"bf16\"",
            "preset = \"diloco\"\nevery = 500",
            "preset = \"cocktail\"\nselection = \"all\"\nwarmup_share = 0\nchunk = 1024\nresult_keep = 8\nrandom_keep = 512",
            "preset = \"sparse-local\"\nchunk = 256\nwarmup_share = 0",
        ] {
            assert_written_alike(sync);
        }
    }

    #[test]
    fn what_is_accepted_of_any_preset_and_key_is_accepted_again_as_it_is_written() {
        let mut refused = 0;
        for preset in SyncPreset::ALL {
            for (key, value) in OTHERS {
                let sync = format!("preset = {}\n{key} = {value}", toml::Value::try_from(preset).unwrap());
                match with(&sync) {
                    Ok(_) => assert_written_alike(&sync),
                    Err(message) => {
                        assert!(message.starts_with("sync."), "{sync}: {message}");
                        refused += 1;
                    }
                }
            }
        }
        assert!((50..230).contains(&refused), "{refused} of 280 were refused");
    }

    #[test]
    fn chunks_of_any_size_fit_where_nothing_reads_how_much_of_them_is_kept() {
        let auto = with("preset = \"auto\"\nchunk = 32").unwrap();
        assert_eq!([auto.keep, auto.warmup_keep, auto.result_keep, auto.random_keep], [32; 4]);
        let dense = with("preset = \"dense\"\nchunk = 32").unwrap();
        assert_eq!([dense.keep, dense.warmup_keep], [32; 2]);
        let message = with("preset = \"sparse-local\"\nchunk = 32").unwrap_err();
        assert!(message.starts_with("sync.keep = 64: must lie between 1 and sync.chunk = 32"), "{message}");
        assert_written_alike("preset = \"auto\"\nchunk = 32");
        assert_written_alike("preset = \"dense\"\nchunk = 32\nkeep = 32");
    }
}
