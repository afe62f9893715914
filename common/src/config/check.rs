//! Constraints on the values of a `run.toml`, alone and together.

use super::{ConfigError, RunConfig, ShareRule};

impl RunConfig {
    pub(crate) fn check_run(&self) -> Result<(), ConfigError> {
        positive("run.workers", self.run.workers)?;
        positive("run.steps", self.run.steps)?;
        self.data.check()?;
        self.check_labels()?;
        self.faults.check()?;
        self.checkpoint.check()?;
        self.check_evaluate()
    }

    pub(crate) fn check_train(&self) -> Result<(), ConfigError> {
        let train = &self.train;
        positive("train.batch", train.batch)?;
        positive("train.micro_batch", train.micro_batch)?;
        let replicas = self.replicas();
        if !train.batch.is_multiple_of(replicas) {
            let divided = match (self.parallel.is_pipelined(), self.parallel.is_shared()) {
                (true, true) => "run.workers / (parallel.stages × parallel.tensor)",
                (true, false) => "run.workers / parallel.stages",
                (false, true) => "run.workers / parallel.tensor",
                (false, false) => "run.workers",
            };
            let nearest = train.batch.checked_next_multiple_of(replicas);
            let reason = format!(
                "the samples of a step are divided among {divided} = {replicas}, so it must be a multiple of {replicas}; \
                 the nearest is {}",
                nearest.unwrap_or(train.batch - train.batch % replicas)
            );
            return Err(ConfigError::value("train.batch", train.batch, reason));
        }
        if train.shares == Some(ShareRule::BySpeed) && !self.may_share_by_speed() {
            let why = if self.privacy.is_some() {
                "what [privacy] costs is reckoned with even shares"
            } else {
                "a copy of the model on several workers is as fast as its slowest part, which no heartbeat tells"
            };
            let reason = format!("{why}: take \"even\", or leave it out");
            return Err(ConfigError::value("train.shares", "by_speed", reason));
        }
        let numbers = [
            ("train.learning_rate", train.learning_rate, f64::MIN_POSITIVE, f64::MAX),
            ("train.final_learning_rate_share", train.final_learning_rate_share, 0.0, 1.0),
            ("train.weight_decay", train.weight_decay, 0.0, 1e3),
            ("train.beta1", train.beta1, 0.0, 1.0 - f64::EPSILON),
            ("train.beta2", train.beta2, 0.0, 1.0 - f64::EPSILON),
            ("train.epsilon", train.epsilon, f64::MIN_POSITIVE, 1.0),
            ("train.gradient_clip", train.gradient_clip, 0.0, f64::MAX),
            ("train.label_smoothing", train.label_smoothing, 0.0, 1.0 - f64::EPSILON),
            ("train.z_loss", train.z_loss, 0.0, 1.0),
            ("train.dropout", train.dropout.unwrap_or_default(), 0.0, 1.0 - f64::EPSILON),
            ("train.attention_dropout", train.attention_dropout.unwrap_or_default(), 0.0, 1.0 - f64::EPSILON),
            (
                "train.classifier_dropout",
                train.classifier_dropout.unwrap_or_default(),
                0.0,
                1.0 - f64::EPSILON,
            ),
            ("train.ema_decay", train.ema_decay.unwrap_or_default(), 0.0, 1.0 - f64::EPSILON),
        ];
        for (key, value, low, high) in numbers {
            if !(low..=high).contains(&value) {
                return Err(ConfigError::value(key, value, range(low, high)));
            }
        }
        self.check_learning_rate()?;
        train.selective_backward.as_ref().map_or(Ok(()), |selective| selective.check_for(self))
    }
}

/// Describes a range; omits limits that are never reached.
pub(super) fn range(low: f64, high: f64) -> String {
    let low = if low == f64::MIN_POSITIVE { "above 0".to_owned() } else { format!("at least {low}") };
    match high {
        f64::MAX => format!("must be {low}"),
        _ if high == 1.0 - f64::EPSILON => format!("must be {low} and below 1"),
        _ => format!("must be {low} and at most {high}"),
    }
}

pub(super) fn positive<T: PartialEq + From<u8> + ToString>(
    key: &'static str,
    value: T,
) -> Result<(), ConfigError> {
    if value == T::from(0) {
        return Err(ConfigError::value(key, value, "must be at least 1"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{RobustRule, RunConfig, SyncConfig, SyncPreset, ValueFormat};

    const SMALL: &str = r#"
        [run]
        name = "small"
        workers = 4
        steps = 100
        [model]
        kind = "gpt2"
        layers = 4
        width = 128
        heads = 4
        context = 128
        [data]
        path = "text.txt"
        sequence_length = 128
    "#;

    fn refusal(extra: &str) -> String {
        RunConfig::parse(&format!("{SMALL}\n{extra}")).unwrap_err().to_string()
    }

    #[test]
    fn the_effective_config_parses_to_itself() {
        let config = RunConfig::parse(SMALL).unwrap();
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
    }

    #[test]
    fn every_preset_stands_by_itself_and_a_key_beside_it_counts() {
        for preset in SyncPreset::ALL {
            let name = toml::Value::try_from(preset).unwrap();
            let config = RunConfig::parse(&format!("{SMALL}\n[sync]\npreset = {name}")).unwrap();
            assert_eq!(config.sync, SyncConfig::of(preset));
            let config =
                RunConfig::parse(&format!("{SMALL}\n[sync]\npreset = {name}\ndeadline_mads = 7.0")).unwrap();
            assert_eq!(config.sync, SyncConfig { deadline_mads: 7.0, ..SyncConfig::of(preset) });
        }
        let sync = |text| RunConfig::parse(&format!("{SMALL}\n[sync]\n{text}")).unwrap().sync;
        let dense = sync("preset = \"dense\"\nvalues = \"bf16\"");
        assert_eq!(
            dense.result_values,
            ValueFormat::Bf16,
            "what comes back has the same format unless it is set"
        );
        assert_eq!([sync("every = 5").every_max, sync("every = 500").every_max], [100, 500]);
        let sparse = sync("preset = \"sparse-local\"\nvalues = \"int8\"");
        assert_eq!(sparse.warmup_values, ValueFormat::Int8);
        let robust = sync("preset = \"diloco\"\nrobust = \"trim\"\nnorm_limit = 0");
        assert_eq!((robust.robust, robust.trim, robust.norm_limit), (RobustRule::Trim, 1, 0.0));
    }

    /// A warm-up from the preset, which the user did not set, must not cause a refusal.
    #[test]
    fn a_warmup_follows_what_is_exchanged_after_it() {
        let sync = |lines: &str| {
            let text = format!("{SMALL}[sync]\npreset = \"sparse-local\"\n{lines}");
            RunConfig::parse(&text).unwrap().sync
        };
        let all = sync(
            "selection = \"all\"\nvalues = \"int8\"\nerror_decay = 0.0\nresult = \"mean\"\nrobust = \"trim\"",
        );
        assert_eq!((all.warmup_keep, all.warmup_values), (4096, ValueFormat::Int8));
        let gradients = sync("source = \"gradient\"\napply = \"inner\"\nevery = 1\noverlap = 0");
        assert!(!gradients.has_warmup());
        assert!(sync("").warmup_selects());
    }

    #[test]
    fn a_warmup_is_a_quarter_of_a_short_run_from_a_pretrained_model_unless_its_length_is_given() {
        let parse = |from: &str, steps: u64, sync: &str| {
            let text = SMALL.replace("steps = 100", &format!("steps = {steps}"));
            let text = text.replace("[model]", &format!("[model]\n{from}"));
            RunConfig::parse(&format!("{text}[sync]\n{sync}"))
        };
        let rounds = |from: &str, steps: u64, sync: &str| {
            let config = parse(from, steps, sync).unwrap();
            let again = RunConfig::parse(&config.to_toml().unwrap()).unwrap();
            assert_eq!(again.round_schedule(), config.round_schedule(), "{steps} steps, {sync}");
            config.round_schedule().warmup_rounds
        };
        let from = "from = \"folder\"\nvocabulary = 257";
        for (steps, expected, from_random) in [
            (40, 50, 100),
            (200, 50, 100),
            (300, 75, 100),
            (400, 100, 100),
            (2000, 100, 100),
            (4000, 200, 200),
        ] {
            let found = [rounds(from, steps, ""), rounds("", steps, "")];
            assert_eq!(found, [expected, from_random], "{steps} steps");
        }
        for (sync, expected) in [
            ("warmup_rounds = 100", 100),
            ("warmup_share = 0.1", 100),
            ("warmup_share_max = 0.4", 80),
            ("warmup_rounds = 100\nwarmup_share_max = 0.3", 60),
            ("warmup_share_max = 0.1", 50),
            ("warmup_share_max = 0.1\nwarmup_share = 0.3", 60),
            ("warmup_share_max = 1", 100),
        ] {
            assert_eq!(rounds(from, 200, sync), expected, "{sync}");
        }
        let told = parse("", 200, "warmup_share_max = 0.4").unwrap_err().to_string();
        assert!(told.contains("sync.warmup_share_max = 0.4: it bounds"), "{told}");
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        let message = refusal("[train]\nlerning_rate = 0.1");
        assert!(message.contains("unknown key `lerning_rate`, did you mean `learning_rate`?"), "{message}");
        let message = refusal("[sync]\nzzz = 1");
        assert!(!message.contains("did you mean") && message.contains("preset, every"), "{message}");
        let message = refusal("[snyc]\nevery = 1");
        assert!(message.contains("did you mean `sync`?"), "{message}");
    }

    #[test]
    fn an_ill_typed_value_is_refused_with_its_line() {
        let message = refusal("[train]\nbatch = \"many\"");
        assert!(
            message.starts_with("line 17, `batch = \"many\"`: ")
                && message.contains("a whole number from 0 to"),
            "{message}"
        );
    }

    #[test]
    fn a_batch_that_does_not_divide_is_refused_with_the_nearest_that_does() {
        let message = refusal("[train]\nbatch = 33");
        assert!(message.contains("train.batch = 33") && message.contains("the nearest is 36"), "{message}");
        let message = refusal("[train]\nbatch = 4294967295");
        assert!(message.contains("the nearest is 4294967292"), "{message}");
    }

    #[test]
    fn values_that_make_no_sense_are_refused_by_name() {
        for (extra, key) in [
            ("[sync]\npreset = \"sparse-local\"\nchunk = 100", "sync.chunk"),
            ("[sync]\npreset = \"sparse-local\"\nkeep = 5000", "sync.keep"),
            ("[sync]\npreset = \"sparse-local\"\noverlap = 16", "sync.overlap"),
            ("[sync]\npreset = \"sparse-local\"\nlook_ahead = true", "sync.look_ahead"),
            ("[sync]\npreset = \"dense\"\nlook_ahead = true", "sync.look_ahead"),
            ("[sync]\npreset = \"sparse-local\"\nadapt = true\noverlap = 0", "sync.adapt"),
            ("[sync]\npreset = \"sparse-local\"\nadapt = true\nrandom_keep = 64", "sync.adapt"),
            (
                "[sync]\npreset = \"auto\"\nerror_decay = 0\nselection = \"all\"\nvalues = \"int8\"",
                "sync.adapt",
            ),
            ("[sync]\nevery_max = 0", "sync.every_max"),
            ("[sync]\npreset = \"dgc\"\nadapt = true\noverlap = 1", "sync.adapt"),
            ("[sync]\npreset = \"sparse-local\"\ntarget_utilisation = 1.5", "sync.target_utilisation"),
            ("[sync]\npreset = \"sparse-local\"\nbits_min = 9.0\nbits_max = 8.0", "sync.bits_min"),
            ("[sync]\nbacklog_max = 0.5", "sync.backlog_max"),
            ("[sync]\npreset = \"sparse-local\"\nerror_decay = 1.5", "sync.error_decay"),
            ("[sync]\npreset = \"sparse-local\"\nfragment_values = 5000", "sync.fragment_values"),
            ("[sync]\npreset = \"sparse-local\"\ngroups = 0", "sync.groups"),
            ("[sync]\npreset = \"sparse-local\"\nmix = 1.5", "sync.mix"),
            ("[sync]\npreset = \"sparse-local\"\nerror_decay = 0", "sync.error_decay"),
            ("[sync]\npreset = \"diloco\"\nvalues = \"2bit\"", "sync.error_decay"),
            ("[sync]\npreset = \"diloco\"\nresult = \"bundle\"", "sync.result"),
            ("[sync]\npreset = \"diloco\"\nresult = \"union\"", "sync.result"),
            ("[sync]\npreset = \"auto\"\nresult = \"union\"", "sync.result"),
            ("[sync]\npreset = \"demo\"\nfragment_values = 65536\nresult = \"union\"", "sync.transform"),
            ("[sync]\npreset = \"dgc\"\nresult = \"union\"\nrobust = \"trim\"", "sync.robust"),
            (
                "[sync]\npreset = \"diloco\"\nresult = \"mean\"\nadapt = true\noverlap = 50\nerror_decay = 1\nrobust = \"trim\"",
                "sync.robust",
            ),
            ("[sync]\npreset = \"dense\"\nevery = 2", "sync.every"),
            ("[sync]\npreset = \"dense\"\ngroups = 2", "sync.groups"),
            ("[sync]\npreset = \"dense\"\nlate = \"mix\"", "sync.late"),
            (
                "[sync]\npreset = \"dense\"\nlate = \"keep-unsent\"",
                "sync.late = keep-unsent: without local training",
            ),
            (
                "[sync]\npreset = \"diloco\"\nlate = \"keep-unsent\"",
                "sync.late = keep-unsent: without error feedback",
            ),
            (
                "[sync]\npreset = \"sparse-local\"\ntransform = \"dct\"\nlate = \"keep-unsent\"",
                "sync.late = keep-unsent: error feedback holds components",
            ),
            ("[sync]\npreset = \"dense\"\napply = \"outer\"", "sync.apply"),
            ("[sync]\npreset = \"sparse-local\"\nsource = \"gradient\"", "sync.apply"),
            ("[sync]\npreset = \"sparse-local\"\nrank = 2", "sync.rank"),
            ("[sync]\npreset = \"sparse-local\"\nrounding = \"stochastic\"", "sync.rounding"),
            ("[sync]\npreset = \"sparse-local\"\nrandom_keep = 5000", "sync.random_keep"),
            ("[sync]\npreset = \"demo\"\nrandom_keep = 64", "sync.transform"),
            (
                "[sync]\npreset = \"demo\"\nfragment_values = 65536\nchunk = 1024\nresult = \"mean\"\nresult_keep = 64",
                "sync.transform",
            ),
            ("[sync]\npreset = \"sparse-local\"\ntransform = \"dct\"\ngroups = 2", "sync.transform"),
            ("[sync]\npreset = \"dgc\"\ntransform = \"dct\"", "sync.transform"),
            ("[sync]\npreset = \"dgc\"\nselection = \"all\"", "sync.source"),
            ("[sync]\npreset = \"dgc\"\napply = \"inner\"", "sync.apply"),
            ("[sync]\npreset = \"dense\"\napply = \"frozen-adamw\"", "sync.apply"),
            ("[sync]\npreset = \"sparse-local\"\nmomentum = 2.0", "sync.momentum"),
            ("[sync]\npreset = \"powersgd\"\noverlap = 1", "sync.rank"),
            ("[sync]\npreset = \"powersgd\"\nerror_decay = 1", "sync.rank"),
            ("[sync]\npreset = \"powersgd\"\ntransform = \"dct\"", "sync.rank = 4: factors have no tiles"),
            ("[sync]\npreset = \"powersgd\"\nresult_keep = 64", "sync.rank = 4: what an owner leaves out"),
            ("[sync]\npreset = \"powersgd\"\nresult_values = \"1bit\"", "sync.rank = 4: what few bits take"),
            ("[sync]\npreset = \"powersgd\"\nwarmup_values = \"1bit\"", "sync.error_decay = 0: at 1bit"),
            ("[sync]\npreset = \"diloco\"\nwarmup_rounds = 2\nwarmup_values = \"2bit\"", "sync.error_decay"),
            ("[sync]\npreset = \"onebit-adam\"\napply = \"inner\"", "sync.apply"),
            ("[sync]\npreset = \"onebit-adam\"\nwarmup_share = 0", "sync.warmup_share"),
            ("[sync]\npreset = \"onebit-adam\"\nwarmup_share = 1.5", "sync.warmup_share"),
            ("[sync]\npreset = \"dense\"\ninner = \"frozen-adamw\"", "sync.inner"),
            ("[sync]\ninner = \"frozen-adamw\"\nwarmup_rounds = 0\nwarmup_share = 0", "sync.warmup_share"),
            ("[sync]\ninner = \"frozen-adamw\"\nwarmup_every = 2", "sync.warmup_every"),
            ("[sync]\ninner = \"frozen-adamw\"\nouter_momentum = 0.9", "sync.outer_momentum"),
            ("[sync]\npreset = \"sparse-local\"\nouter_momentum = 1.0", "sync.outer_momentum"),
            ("[sync]\npreset = \"sparse-local\"\nnorm_limit = 0.5", "sync.norm_limit"),
            ("[sync]\npreset = \"sparse-local\"\nnorm_limit = nan", "sync.norm_limit"),
            ("[sync]\npreset = \"sparse-local\"\ntrim = 0", "sync.trim"),
            ("[sync]\npreset = \"sparse-local\"\nresult = \"bundle\"\nrobust = \"clip\"", "sync.robust"),
            ("[sync]\npreset = \"sparse-local\"\nresult = \"mean\"\nrobust = \"trim\"", "sync.robust"),
            ("[sync]\npreset = \"diloco\"\nrobust = \"trim\"\ntrim = 2", "sync.trim"),
            ("[sync]\npreset = \"diloco\"\nwarmup_rounds = 2\nwarmup_keep = 64", "sync.error_decay"),
            (
                "[sync]\npreset = \"diloco\"\nwarmup_rounds = 2\nwarmup_keep = 64\nerror_decay = 1\nrobust = \"trim\"",
                "sync.robust",
            ),
            (
                "[sync]\npreset = \"dense\"\nselection = \"visible\"",
                "sync.selection = visible: of a gradient",
            ),
            (
                "[sync]\npreset = \"diloco\"\nselection = \"visible\"",
                "sync.selection = visible: with momentum",
            ),
            (
                "[sync]\npreset = \"sparse-local\"\nselection = \"visible\"",
                "sync.selection = visible: changes wait",
            ),
            (
                "[sync]\npreset = \"sparse-local\"\nselection = \"visible\"\nerror_decay = 1.0\nrandom_keep = 64",
                "sync.selection = visible: changes are compared",
            ),
            ("[sync]\nselection = \"visible\"", "sync.selection"),
            (
                "[sync]\npreset = \"sparse-local\"\nselection = \"visible\"\nerror_decay = 1.0\nkeep = 5",
                "sync.keep = 5: only selection = \"top-k\" and \"threshold\"",
            ),
            ("[train]\nbeta1 = 1.0", "train.beta1"),
            ("[train]\nlabel_smoothing = 1.0", "train.label_smoothing"),
            ("[train]\ndropout = 1.0", "train.dropout"),
            ("[train]\nattention_dropout = -0.1", "train.attention_dropout"),
            ("[train]\nz_loss = -1e-4", "train.z_loss"),
            ("[train]\nema_decay = 1.0", "train.ema_decay"),
            ("[parallel]\nstages = 2\n[train]\nshares = \"by_speed\"", "train.shares"),
            ("[train]\nlearning_rate = nan", "train.learning_rate"),
        ] {
            let message = refusal(extra);
            assert!(message.starts_with(key), "{extra}: {message}");
        }
        for (from, to, key) in [
            ("width = 128", "width = 130", "model.width"),
            ("sequence_length = 128", "sequence_length = 129", "data.sequence_length"),
            ("workers = 4", "workers = 0", "run.workers"),
            ("layers = 4", "layers = 4000000000", "model.layers"),
            ("width = 128", "width = 2147483648", "model.width"),
            ("context = 128", "context = 4000000000", "model.context"),
            ("context = 128", "context = 128\nvocabulary = 4000000000", "model.vocabulary"),
            ("context = 128", "context = 128\nfeed_forward_width = 0", "model.feed_forward_width"),
        ] {
            let message = RunConfig::parse(&SMALL.replace(from, to)).unwrap_err().to_string();
            assert!(message.starts_with(key), "{message}");
        }
    }
}
