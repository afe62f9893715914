//! Compatibility with `selection = "columns"`: a gradient must not be transformed before it is sent.

use crate::config::{
    ConfigError, FRAGMENT_VALUES_MAX, ResultForm, RunConfig, SelectionRule, Source, SparseBackwardConfig,
    SparseMode, Transform, WithinSite,
};
use crate::model::ModelSpec;

/// Substitute for the tokenizer's vocabulary, which may be unknown yet. Only a separate output projection
/// depends on it, and part of that is kept in any case.
const VOCABULARY: u32 = 1 << 16;

impl RunConfig {
    pub(super) fn check_columns(&self) -> Result<(), ConfigError> {
        let (sync, train) = (&self.sync, &self.train);
        if sync.selection != SelectionRule::Columns {
            return Ok(());
        }
        let sparse = train.sparse_backward.as_ref();
        let columns = sparse.filter(|sparse| sparse.mode == SparseMode::Columns);
        let refused = if columns.is_none() {
            "there are no columns: take [train.sparse_backward] with mode = \"columns\", or another selection"
        } else if !self.leaves_columns_out(columns)? {
            "no gradient would be of columns, as all columns of each product are kept, or only the tied output projection is meant: take a smaller train.sparse_backward.keep, or other layers, or another selection"
        } else if sync.source != Source::Gradient {
            "only gradients are of columns, as AdamW's steps change all values: take source = \"gradient\" (preset = \"dense\"), or another selection"
        } else if sync.has_warmup() {
            "a warm-up exchanges all values: take warmup_share = 0 and warmup_rounds = 0, or another selection"
        } else if sync.adapt {
            "with adapt = true the controller selects values: take adapt = false, or another selection"
        } else if sync.rank > 0 || sync.transform != Transform::None || sync.random_keep < sync.chunk {
            "ranks, transforms and random masks make other values of columns: leave those out, or take another selection"
        } else if sync.look_ahead {
            "looking ahead takes the whole gradient: take look_ahead = false, or another selection"
        } else if sync.result != ResultForm::Bundle {
            "a mean over sites would hold all values: take result = \"bundle\", in which everybody gets the columns of each site, or another selection"
        } else if sync.within_site != WithinSite::Direct {
            "the members of a site would add up all values: take within_site = \"direct\", or another selection"
        } else if self.parallel.is_divided() {
            "copies of the model in parts exchange all values of each: take stages = 1 and tensor = 1 in [parallel], or another selection"
        } else if self.privacy.is_some() || self.secure_aggregation.is_some() {
            "which columns are sent tells of the data: leave [privacy] and [secure_aggregation] out, or take another selection"
        } else {
            return self.check_bundles_of_columns();
        };
        Err(ConfigError::value("sync.selection", "columns", refused))
    }

    /// Whether the gradient of any weight has fewer columns than the weight.
    fn leaves_columns_out(&self, sparse: Option<&SparseBackwardConfig>) -> Result<bool, ConfigError> {
        let spec = self.spec_of_columns()?;
        Ok(sparse.is_some_and(|sparse| !spec.column_products(sparse).is_empty()))
    }

    fn spec_of_columns(&self) -> Result<ModelSpec, ConfigError> {
        ModelSpec::of(self, self.model.vocabulary.unwrap_or(VOCABULARY))
    }

    /// A result bundles all sites' payloads in one frame. In any format they must fit if each sends all of a
    /// fragment; a sixteenth more covers positions.
    fn check_bundles_of_columns(&self) -> Result<(), ConfigError> {
        let most = FRAGMENT_VALUES_MAX / 16 * 15 / self.run.workers.max(1);
        let spec = self.spec_of_columns()?;
        if self.sync.layout(spec.parameter_count()).fragment_values <= most {
            return Ok(());
        }
        let reason = format!(
            "with selection = \"columns\" a result holds what each site has sent, and might be larger than the 16 MiB of a frame with {} workers: take {most} or less",
            self.run.workers
        );
        Err(ConfigError::value("sync.fragment_values", self.sync.fragment_values, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[run]\nname = \"small\"\nworkers = 2\nsteps = 10\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\n\
                         heads = 1\ncontext = 8\n[data]\npath = \"text.txt\"\nsequence_length = 8\n";
    const SYNC: &str = "[sync]\npreset = \"dense\"\nselection = \"columns\"\nresult = \"bundle\"\nwithin_site = \"direct\"\n";
    const SPARSE: &str = "[train.sparse_backward]\nkeep = 0.1\n";

    fn refusal(text: &str) -> String {
        RunConfig::parse(&format!("{SMALL}{text}")).unwrap_err().to_string()
    }

    #[test]
    fn columns_of_gradients_go_to_everybody_in_any_format() {
        for values in ["", "values = \"int8\"", "values = \"2bit\"\nerror_decay = 0.9", "overlap = 1"] {
            let text = format!("{SMALL}{SPARSE}{SYNC}{values}");
            let config = RunConfig::parse(&text).unwrap_or_else(|error| panic!("{values}: {error}"));
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn a_classifier_may_send_columns_of_its_gradients() {
        let text = "[run]\nname = \"small\"\nworkers = 2\nsteps = 10\n[model]\nkind = \"mlp\"\n[data]\nimage = { channels = 1, height = 8, width = 8, classes = 3 }\n\
                    sources = [{ path = \"images\", format = \"idx\", labels = \"labels\" }]\n";
        RunConfig::parse(&format!("{text}{SPARSE}{SYNC}")).unwrap();
    }

    #[test]
    fn what_would_make_other_vectors_of_them_is_refused_with_what_does_not() {
        let with = |line: &str| refusal(&format!("{SPARSE}{SYNC}{line}"));
        for (message, remedy) in [
            (refusal(SYNC), "[train.sparse_backward]"),
            (refusal(&format!("{SPARSE}mode = \"rows\"\n{SYNC}")), "mode = \"columns\""),
            (refusal(&format!("{SPARSE}{}", SYNC.replace("bundle", "mean"))), "result = \"bundle\""),
            (refusal(&format!("{SPARSE}{}", SYNC.replace("direct", "ring"))), "within_site = \"direct\""),
            (with("warmup_rounds = 3"), "warmup_rounds = 0"),
            (with("overlap = 1\nlook_ahead = true"), "look_ahead = false"),
            (with("random_keep = 64"), "another selection"),
            (with("[parallel]\nplan = \"fixed\"\nstages = 2"), "stages = 1"),
        ] {
            let is_named = message.starts_with("sync.selection = columns: ");
            assert!(is_named && message.contains(remedy), "{remedy}: {message}");
        }
        let small = SMALL.replace("context = 8\n", "context = 8\nvocabulary = 300\n");
        assert!(RunConfig::parse(&format!("{small}{SPARSE}{SYNC}")).is_ok(), "of a vocabulary that is known");
        let message = refusal(&format!("{}{SYNC}", SPARSE.replace("0.1", "1.0")));
        assert!(message.starts_with("sync.selection = columns: no gradient"), "{message}");
        let many = SMALL.replace("workers = 2", "workers = 40");
        let text = format!("{many}[train]\nbatch = 40\n{SPARSE}{SYNC}fragment_values = 262144\n");
        let message = RunConfig::parse(&text).unwrap_err().to_string();
        assert!(
            message.starts_with("sync.fragment_values = 262144: ") && message.ends_with("take 98304 or less"),
            "{message}"
        );
        let message = with("keep = 8");
        assert!(message.starts_with("sync.keep = 8: "), "{message}");
    }
}
