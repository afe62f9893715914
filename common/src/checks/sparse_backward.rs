//! Constraints of `[train.sparse_backward]`, alone and together with the model.

use crate::config::{ConfigError, RunConfig, SparseBackwardConfig};
use crate::model::{ModelSpec, is_meant, is_of_experts};

impl SparseBackwardConfig {
    pub(super) fn check_for(&self, config: &RunConfig) -> Result<(), ConfigError> {
        if !(f64::MIN_POSITIVE..=1.0).contains(&self.keep) {
            let reason = "is the share of a product's columns, or of a row's values, that is kept: must lie above 0, and be 1 at most; 0.06 to 0.2 are usual";
            return Err(ConfigError::value("train.sparse_backward.keep", self.keep, reason));
        }
        if self.layers.is_empty() {
            let reason = "means no product at all: leave it out for those of all layers, or leave [train.sparse_backward] out";
            return Err(ConfigError::value("train.sparse_backward.layers", "[]", reason));
        }
        // No name depends on the vocabulary, which may be unknown yet.
        let spec = ModelSpec::of(config, 1)?;
        let products = spec.products();
        let all = spec.parameters();
        let of_experts = all.iter().find(|tensor| is_of_experts(&tensor.name));
        if let Some(pattern) = self
            .layers
            .iter()
            .find(|pattern| of_experts.is_some_and(|tensor| is_meant(&spec, pattern, &tensor.name)))
        {
            let reason = "experts have no sparse backward pass: name other products, such as `*.self_attn.*`";
            return Err(ConfigError::value("train.sparse_backward.layers", pattern, reason));
        }
        let matches_none =
            |pattern: &&String| !products.iter().any(|product| is_meant(&spec, pattern, &product.weight));
        let Some(pattern) = self.layers.iter().find(matches_none) else { return Ok(()) };
        let mut names: Vec<String> = products
            .iter()
            .filter(|product| product.weight.contains(".0."))
            .map(|product| format!("`{}`", product.weight.replace(".0.", ".*.")))
            .collect();
        names.sort_unstable();
        if names.is_empty() {
            let reason = format!(
                "means no product: the model has none but the output projection, which is meant only where its whole name is written: `{}`",
                spec.output_projection()
            );
            return Err(ConfigError::value("train.sparse_backward.layers", pattern, reason));
        }
        let inner = products.iter().filter(|product| product.weight != spec.output_projection()).count();
        let reason = format!(
            "is no name, nor a pattern of names, of a weight in a matrix product; there are {} in each of {} layers, and the output projection, which is meant only where its whole \
             name is written: `{}`",
            names.join(", "),
            inner.checked_div(names.len()).unwrap_or(0),
            spec.output_projection()
        );
        Err(ConfigError::value("train.sparse_backward.layers", pattern, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SparseMode;

    const SMALL: &str = r#"
        [run]
        name = "small"
        workers = 2
        steps = 10
        [model]
        kind = "gpt2"
        layers = 12
        width = 96
        heads = 4
        context = 8
        [data]
        path = "text.txt"
        sequence_length = 8
        [train.sparse_backward]
    "#;

    fn parse(lines: &str) -> Result<SparseBackwardConfig, String> {
        let config = RunConfig::parse(&format!("{SMALL}\n{lines}")).map_err(|error| error.to_string())?;
        let written = config.to_toml().unwrap();
        assert_eq!(RunConfig::parse(&written).unwrap(), config, "{written}");
        Ok(config.train.sparse_backward.unwrap())
    }

    #[test]
    fn a_share_is_enough_and_means_columns_of_all_layers() {
        let sparse = parse("keep = 0.06").unwrap();
        let all =
            SparseBackwardConfig { keep: 0.06, mode: SparseMode::Columns, layers: vec!["*".to_owned()] };
        assert_eq!(sparse, all);
        assert_eq!(parse("keep = 1\nmode = \"rows\"").unwrap().mode, SparseMode::Rows);
        assert_eq!([1, 8, 500, 3072].map(|columns| sparse.kept(columns)), [1, 1, 30, 184]);
        assert_eq!(SparseBackwardConfig { keep: 1.0, ..sparse }.kept(7), 7);
    }

    #[test]
    fn the_output_projection_is_meant_where_its_name_is_written() {
        let included = |layers: &str, weight: &str| {
            let sparse = parse(&format!("keep = 0.1\nlayers = {layers}")).unwrap();
            let config = RunConfig::parse(&format!("{SMALL}keep = 0.1")).unwrap();
            sparse.includes(&ModelSpec::resolve(&config.model, 256).unwrap(), weight)
        };
        let (inner, output) = ("transformer.h.11.mlp.c_fc.weight", "transformer.wte.weight");
        assert!(included(r#"["*"]"#, inner) && !included(r#"["*"]"#, output));
        assert!(included(r#"["*.mlp.*", "transformer.wte.weight"]"#, output));
        assert!(included(r#"["transformer.h.1?.*"]"#, inner));
        assert!(!included(r#"["transformer.h.?.*"]"#, inner));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name_and_says_what_would() {
        for keep in ["0", "-0.5", "1.5", "nan"] {
            let message = parse(&format!("keep = {keep}")).unwrap_err();
            assert!(message.starts_with("train.sparse_backward.keep = "), "{message}");
        }
        let message = parse("keep = 0.5\nlayers = []").unwrap_err();
        assert!(message.starts_with("train.sparse_backward.layers = []: means no product"), "{message}");
        for pattern in
            ["transformer.h.12.*", "*.c_fc.bias", "transformer.w*", "*ln_1*", "transformer.wpe.weight"]
        {
            let message = parse(&format!("keep = 0.5\nlayers = [\"*\", \"{pattern}\"]")).unwrap_err();
            let words = ["`transformer.h.*.mlp.c_fc.weight`", "12 layers", "`transformer.wte.weight`"];
            assert!(message.starts_with(&format!("train.sparse_backward.layers = {pattern}: ")), "{message}");
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
        let mixture = format!("{SMALL}keep = 0.5").replace("gpt2", "mixtral");
        let message = RunConfig::parse(&mixture).unwrap_err().to_string();
        assert!(message.contains("layers = *: experts have no sparse backward pass"), "{message}");
        RunConfig::parse(&format!("{mixture}\nlayers = [\"*.self_attn.*\"]")).unwrap();
        assert!(parse("kep = 0.5").unwrap_err().contains("did you mean `keep`?"));
        assert!(parse("keep = 0.5\nmode = \"column\"").unwrap_err().contains("`columns`"));
        assert!(parse("mode = \"rows\"").unwrap_err().contains("keep"));
    }
}
