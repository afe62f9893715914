//! `[model.bottleneck]` and `model.subspace`: residual streams of which little is sent.

use serde::{Deserialize, Serialize};

use super::{ConfigError, ModelConfig, ModelKind, RunConfig};

/// `[model.bottleneck]`: places where the residual stream is narrow, so that stages of a pipeline cut there send little (ResBM: arXiv 2604.11947). gpt2 only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BottleneckConfig {
    /// Values per token: below `model.width`.
    pub width: u32,
    /// Layers behind which there is a bottleneck, counted from 1, ascending, and below `model.layers`. Stages are cut there.
    pub behind: Vec<u32>,
}

impl BottleneckConfig {
    fn check(&self, model: &ModelConfig) -> Result<(), ConfigError> {
        check_width("model.bottleneck.width", self.width, model)?;
        let is_ascending = self.behind.is_sorted_by(|a, b| a < b);
        let are_within = self.behind.iter().all(|layer| (1..model.layers).contains(layer));
        if self.behind.is_empty() || !is_ascending || !are_within {
            let reason = format!(
                "must name layers from 1 to {}, ascending: those behind which stages may be cut",
                model.layers.saturating_sub(1)
            );
            return Err(ConfigError::value("model.bottleneck.behind", format!("{:?}", self.behind), reason));
        }
        Ok(())
    }
}

impl ModelConfig {
    /// Checks the form of the residual stream.
    pub(super) fn check_stream(&self) -> Result<(), ConfigError> {
        if let Some((key, value)) =
            self.given_stream().into_iter().next().filter(|_| self.kind != ModelKind::Gpt2)
        {
            let reason = format!("is for gpt2, not {}: remove it, or take kind = \"gpt2\"", self.kind.name());
            return Err(ConfigError::value(key, value, reason));
        }
        match (self.subspace, &self.bottleneck) {
            (Some(width), Some(_)) => {
                let reason =
                    "a stream within a subspace is narrow everywhere: remove it, or [model.bottleneck]";
                Err(ConfigError::value("model.subspace", width, reason))
            }
            (Some(width), None) => check_width("model.subspace", width, self),
            (None, Some(bottleneck)) => bottleneck.check(self),
            (None, None) => Ok(()),
        }
    }

    /// Returns the given keys of the form of the residual stream, and their values.
    pub(super) fn given_stream(&self) -> Vec<(&'static str, String)> {
        let subspace = self.subspace.map(|width| ("model.subspace", width.to_string()));
        let bottleneck =
            self.bottleneck.as_ref().map(|of| ("model.bottleneck", format!("{{ width = {}, … }}", of.width)));
        subspace.into_iter().chain(bottleneck).collect()
    }
}

impl RunConfig {
    /// Refuses what a narrow residual stream does not go with.
    pub(super) fn check_stream(&self) -> Result<(), ConfigError> {
        let Some((key, value)) = self.model.given_stream().into_iter().next() else { return Ok(()) };
        let tuned = [
            ("[train.lora]", self.train.lora.is_some()),
            ("train.unfrozen_parameters", self.train.unfrozen_parameters.is_some()),
        ];
        if let Some((other, _)) = tuned.into_iter().find(|(_, is_there)| *is_there) {
            let reason = format!("all of such a model is trained: remove it, or {other}");
            return Err(ConfigError::value(key, value, reason));
        }
        if let (Some(_), Some(rate)) = (self.model.subspace, self.train.dropout.filter(|rate| *rate > 0.0)) {
            let reason = "drops values of the residual stream, which would leave model.subspace: set 0.0, or use train.attention_dropout";
            return Err(ConfigError::value("train.dropout", rate, reason));
        }
        Ok(())
    }
}

fn check_width(key: &'static str, width: u32, model: &ModelConfig) -> Result<(), ConfigError> {
    if (1..model.width).contains(&width) {
        return Ok(());
    }
    let reason = format!("must be at least 1, and below model.width = {}, or it saves nothing", model.width);
    Err(ConfigError::value(key, width, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(model: &str, more: &str) -> Result<RunConfig, String> {
        let text = format!(
            "[run]\nname = \"x\"\nworkers = 4\nsteps = 9\n[model]\nlayers = 4\nwidth = 64\nheads = 4\ncontext = 16\n{model}\n\
             [data]\npath = \"x\"\nsequence_length = 16\n{more}"
        );
        let config = RunConfig::parse(&text).map_err(|error| error.to_string())?;
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        Ok(config)
    }

    #[test]
    fn a_narrow_stream_is_read() {
        let config = parse("kind = \"gpt2\"\nsubspace = 8", "[parallel]\nstages = 4").unwrap();
        assert_eq!(config.model.subspace, Some(8));
        let bottleneck = "kind = \"gpt2\"\nbottleneck = { width = 8, behind = [1, 3] }";
        let config = parse(bottleneck, "[parallel]\nstages = 2\n[train]\ndropout = 0.1").unwrap();
        assert_eq!(config.model.bottleneck.unwrap().behind, [1, 3]);
        parse(bottleneck, "[parallel]\nstages = 4\nblocks = [2, 1, 1, 2]").unwrap();
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_with_the_remedy() {
        let (subspace, bottleneck) = ("subspace = 8", "bottleneck = { width = 8, behind = [2] }");
        for (model, more, told) in [
            (
                "kind = \"gpt2\"\nsubspace = 0",
                "",
                "model.subspace = 0: must be at least 1, and below model.width = 64",
            ),
            ("kind = \"gpt2\"\nsubspace = 64", "", "model.subspace = 64: must be at least 1"),
            (
                "kind = \"gpt2\"\nbottleneck = { width = 64, behind = [2] }",
                "",
                "model.bottleneck.width = 64: must be",
            ),
            (
                "kind = \"gpt2\"\nbottleneck = { width = 8, behind = [] }",
                "",
                "model.bottleneck.behind = []: must name layers from 1 to 3",
            ),
            (
                "kind = \"gpt2\"\nbottleneck = { width = 8, behind = [4] }",
                "",
                "model.bottleneck.behind = [4]: must name",
            ),
            (
                "kind = \"gpt2\"\nbottleneck = { width = 8, behind = [2, 2] }",
                "",
                "model.bottleneck.behind = [2, 2]: must name",
            ),
            (
                &format!("kind = \"gpt2\"\n{subspace}\n{bottleneck}"),
                "",
                "model.subspace = 8: a stream within a subspace is",
            ),
            (&format!("kind = \"llama\"\n{subspace}"), "", "model.subspace = 8: is for gpt2, not llama"),
            (&format!("kind = \"mixtral\"\n{subspace}"), "", "model.subspace = 8: is for gpt2, not mixtral"),
            (
                &format!("kind = \"bert\"\nvocabulary = 257\n{bottleneck}"),
                "[data.masking]\ntoken = 256",
                "model.bottleneck = { width = 8, … }: is for gpt2, not bert",
            ),
            (
                &format!("kind = \"gpt2\"\n{subspace}"),
                "[train]\ndropout = 0.1",
                "train.dropout = 0.1: drops values of the residual",
            ),
            (
                &format!("kind = \"gpt2\"\n{subspace}"),
                "[train.lora]\nrank = 2",
                "model.subspace = 8: all of such a model is trained: remove it, or [train.lora]",
            ),
            (
                &format!("kind = \"gpt2\"\n{bottleneck}"),
                "[train]\nunfrozen_parameters = [\"*\"]",
                "model.bottleneck = { width = 8, … }: all of such a model is trained: remove it, or train.unfrozen",
            ),
            (
                &format!("kind = \"gpt2\"\n{subspace}"),
                "[parallel]\ntensor = 2",
                "parallel.tensor = 2: a tensor group does not divide model.subspace or model.bottleneck: take 1",
            ),
            (
                &format!("kind = \"gpt2\"\n{bottleneck}"),
                "[parallel]\ntensor = 2",
                "parallel.tensor = 2: a tensor group does not divide",
            ),
            (
                &format!("kind = \"gpt2\"\n{bottleneck}"),
                "[parallel]\nstages = 4",
                "parallel.stages = 4: model.bottleneck.behind names 1 of the 3 places where 4 stages are cut: name more, or give parallel.blocks",
            ),
        ] {
            let message = parse(model, more).unwrap_err();
            assert!(message.starts_with(told), "{model}, {more}: {message}");
        }
        let text = "[run]\nname = \"x\"\nworkers = 1\nsteps = 9\n[model]\nkind = \"mlp\"\nsubspace = 8\n[data]\n[[data.sources]]\npath = \"x\"\nformat = \"images\"\n\
                    [data.image]\nheight = 28\nwidth = 28\nclasses = 10\n";
        let message = RunConfig::parse(text).unwrap_err().to_string();
        assert!(message.starts_with("model.subspace = 8: a mlp has no such thing"), "{message}");
    }
}
