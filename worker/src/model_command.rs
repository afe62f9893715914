//! `worker model`: what a model's folder holds.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use indicatif::{BinaryBytes, HumanCount};
use longhaul_checkpoint::{InspectedModel, OpenedModel, Weights, base_of, inspect_model, open_weights};
use longhaul_common::config::{EncoderActivation, RopeScaling};
use longhaul_common::model::{Decoder, Encoder, Head, Lora, ModelSpec, NormPlaces, QueryNorm, Stream};
use longhaul_data::Tokenizer;
use longhaul_data::counted::counted;

use crate::cli::ModelCommand;

/// Runs a sub-command.
///
/// # Errors
/// The model is not supported, or incomplete.
pub fn run(command: &ModelCommand) -> Result<()> {
    let ModelCommand::Inspect { path, base } = command;
    match io::stdout().write_all(report(path, base.as_deref())?.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("print"),
        _ => Ok(()),
    }
}

fn report(path: &Path, base: Option<&Path>) -> Result<String> {
    let Some(base) = base_of(path, base)? else { return report_of_model(path) };
    let OpenedModel { spec, parameters, .. } = open_weights(path, Some(&base), Weights::Trained)?;
    Ok(format!(
        "{}: {} parameters beside {}\n{}",
        TrainedPart(&spec),
        HumanCount(parameters.len() as u64),
        base.display(),
        report_of_model(&base)?
    ))
}

/// The trained part of a model in a line.
struct TrainedPart<'a>(&'a ModelSpec);

impl fmt::Display for TrainedPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.tuning.as_ref().and_then(|tuning| tuning.lora.as_ref()) {
            Some(lora) => Adapters(lora).fmt(f)?,
            None => f.write_str("tensors trained by themselves")?,
        }
        self.0.classes().map_or(Ok(()), |classes| write!(f, ", and a head for {classes} classes"))
    }
}

/// Adapters in a line.
struct Adapters<'a>(&'a Lora);

impl fmt::Display for Adapters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lora { rank, alpha, use_rslora, use_dora, weights, .. } = self.0;
        write!(f, "adapters of rank {rank}, alpha {alpha}")?;
        let chosen = [(use_rslora, "stabilised by the rank's root"), (use_dora, "DoRA")];
        chosen.iter().filter(|(is_chosen, _)| **is_chosen).try_for_each(|(_, name)| write!(f, ", {name}"))?;
        write!(f, ", of {}", counted(weights.len() as u64, "weight"))
    }
}

fn report_of_model(path: &Path) -> Result<String> {
    let InspectedModel { spec, weights, tokenizer, chat_template } = inspect_model(path)?;
    let types: Vec<&str> = weights.types.iter().map(String::as_str).collect();
    let tokenizer = match tokenizer {
        Some(file) => {
            let entries = Tokenizer::load(file.to_str().context("the path is not UTF-8")?)?.vocabulary();
            ensure!(
                entries <= spec.vocabulary,
                "{} has {entries} entries, and the model {}: it is of another model",
                file.display(),
                spec.vocabulary
            );
            format!("{}, {}", file.display(), counted(entries.into(), "token"))
        }
        None => "none (tokenizer.json is not there)".to_owned(),
    };
    let template = chat_template.map_or_else(|| "none".to_owned(), |file| file.display().to_string());
    let left_out = match &weights.left_out[..] {
        [] => String::new(),
        [first, ..] => {
            format!("left out: {}, such as {first}\n", counted(weights.left_out.len() as u64, "tensor"))
        }
    };
    Ok(format!(
        "{}\nparameters: {}\nweights: {} in {}, {}\ntokenizer: {tokenizer}\nchat template: {template}\n{left_out}",
        Architecture(&spec),
        Parameters(&spec),
        BinaryBytes(weights.bytes),
        counted(weights.files as u64, "file"),
        types.join(" and "),
    ))
}

/// The family, its sizes, and a decoder's choices.
struct Architecture<'a>(&'a ModelSpec);

impl fmt::Display for Architecture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = self.0;
        writeln!(
            f,
            "architecture: {}, {}, width {}, {} of width {} ({} of keys and values), feed-forward {}, context {}, vocabulary {}{}",
            spec.kind.name(),
            counted(spec.layers.into(), "layer"),
            spec.width,
            counted(spec.heads.into(), "head"),
            spec.head_width(),
            spec.kv_heads,
            spec.feed_forward_width,
            spec.context,
            spec.vocabulary,
            if spec.tied_embeddings { ", tied" } else { "" },
        )?;
        match &spec.stream {
            Stream::Full => {}
            Stream::Subspace(width) => return write!(f, "choices: subspace {width}"),
            Stream::Bottlenecks(of) => {
                return write!(f, "choices: bottleneck {} behind layers {:?}", of.width, of.behind);
            }
        }
        if let Some(encoder) = spec.encoder.as_deref() {
            return write!(f, "choices: {}", EncoderChoices(spec, encoder));
        }
        spec.decoder.as_deref().map_or(Ok(()), |decoder| write!(f, "choices: {}", Choices(spec, decoder)))
    }
}

struct EncoderChoices<'a>(&'a ModelSpec, &'a Encoder);

impl fmt::Display for EncoderChoices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(spec, encoder) = *self;
        let activation = match encoder.activation {
            EncoderActivation::Gelu => "GELU",
            EncoderActivation::GeluNew => "GELU by tanh",
        };
        write!(
            f,
            "every token sees all others, norms behind (epsilon {:e}), {activation}",
            encoder.norm_epsilon
        )?;
        write!(
            f,
            ", positions from {}, {}",
            encoder.first_position,
            counted(encoder.types.into(), "token type")
        )?;
        if encoder.projects(spec.width) {
            write!(f, ", embeddings of width {}", encoder.embedding_width)?;
        }
        match encoder.head {
            Head::Masked => f.write_str(", a head for masked tokens"),
            Head::Classes(classes) => write!(f, ", a head for {classes} classes"),
            Head::Replaced => f.write_str(", a head for replaced tokens"),
            Head::None => f.write_str(", no head"),
        }
    }
}

struct Choices<'a>(&'a ModelSpec, &'a Decoder);

impl fmt::Display for Choices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(spec, decoder) = *self;
        let norms = match decoder.norms {
            NormPlaces::Before => "before",
            NormPlaces::Behind => "behind",
            NormPlaces::Both => "on both sides",
        };
        write!(f, "norms {norms} (epsilon {:e})", decoder.norm_epsilon)?;
        match decoder.query_norm {
            Some(QueryNorm::Head) => f.write_str(", norms of each head's queries and keys")?,
            Some(QueryNorm::Width) => f.write_str(", norms of queries and keys")?,
            None => {}
        }
        let biases = [
            (decoder.qkv_bias, "queries, keys and values"),
            (decoder.out_bias, "attention's output"),
            (decoder.mlp_bias, "feed-forward"),
        ];
        for (_, of) in biases.iter().filter(|(has_one, _)| *has_one) {
            write!(f, ", biases of {of}")?;
        }
        let scaling = match &decoder.rotary.scaling {
            None => String::new(),
            Some(RopeScaling::Linear { factor }) => format!(", linear scaling by {factor}"),
            Some(RopeScaling::Llama3 { factor, .. }) => format!(", llama3 scaling by {factor}"),
            Some(RopeScaling::Yarn { factor, .. }) => format!(", YaRN by {factor}"),
            Some(RopeScaling::LongRope { original, .. }) => format!(", LongRoPE beyond {original} tokens"),
        };
        write!(f, ", rotary base {}{scaling}", decoder.rotary.base)?;
        let windowed = (0..spec.layers).filter(|layer| decoder.window_of(*layer).is_some()).count() as u64;
        if let Some(window) = decoder.window.filter(|_| windowed > 0) {
            write!(f, ", a window of {window} tokens in {}", counted(windowed, "layer"))?;
        }
        let without = (0..spec.layers).filter(|layer| decoder.rotary_of(*layer).is_none()).count() as u64;
        if without > 0 {
            write!(f, ", no positions in {}", counted(without, "layer"))?;
        }
        if let Some(of) = &decoder.experts {
            let layers = u64::from(spec.layers) - of.dense_layers.len() as u64;
            let (experts, layers) = (counted(of.count.into(), "expert"), counted(layers, "layer"));
            write!(f, ", {experts} of width {} in {layers}, {} for each token", of.width, of.chosen)?;
            if of.balance > 0.0 {
                write!(f, ", balanced by {}", of.balance)?;
            }
        }
        if let Some(cap) = decoder.score_cap {
            write!(f, ", scores capped at {cap}")?;
        }
        if let Some(cap) = decoder.logit_cap {
            write!(f, ", logits capped at {cap}")?;
        }
        Ok(())
    }
}

/// The number of parameters, in all and by part.
struct Parameters<'a>(&'a ModelSpec);

impl fmt::Display for Parameters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = self.0;
        let of = |blocks: std::ops::Range<u32>| spec.part(vec![blocks]).parameter_count();
        write!(
            f,
            "{}: {} of the embedding, {} of {}, {} of the head",
            HumanCount(spec.parameter_count()),
            HumanCount(of(0..1)),
            HumanCount(of(1..spec.head())),
            counted(spec.layers.into(), "layer"),
            HumanCount(of(spec.head()..spec.head() + 1)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(case: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoders").join(case)
    }

    #[test]
    fn the_architecture_its_choices_and_the_weights_are_shown() {
        for (case, words) in [
            (
                "qwen3",
                &[
                    "qwen3, 3 layers, width 16, 4 heads of width 8 (2 of keys and values)",
                    "norms of each head's",
                    "base 1000000",
                    "BF16",
                ][..],
            ),
            ("qwen2", &[", tied", "biases of queries, keys and values", "a window of 6 tokens in 2 layers"]),
            ("gemma2", &["norms on both sides", "scores capped at 2", "logits capped at 3"]),
            ("smollm3", &["no positions in 1 layer"]),
            ("phi3-longrope", &["LongRoPE beyond 16 tokens"]),
            ("llama-llama3", &["llama3 scaling by 8"]),
            ("qwen3-moe", &[", 4 experts of width 8 in 2 layers, 2 for each token"]),
            ("olmoe", &[", 6 experts of width 12 in 2 layers, 3 for each token, balanced by 0.5"]),
            ("olmo2", &["norms behind", ", norms of queries and keys"]),
            (
                "llama",
                &[
                    "parameters: 7,408: 768 of the embedding, 5,856 of 3 layers, 784 of the head",
                    "tokenizer: none",
                    "chat template: none",
                ],
            ),
        ] {
            let told = report(&fixture(case), None).unwrap();
            assert!(words.iter().all(|words| told.contains(words)), "{case}: {told}");
        }
    }

    #[test]
    fn adapters_are_shown_with_the_model_that_they_belong_to() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let adapters = |case: &str| fixtures.join("adapters").join(case);
        for (case, words) in
            [("llama", "adapters of rank "), ("phi3", "adapters of rank "), ("qwen3-dora", ", DoRA, of ")]
        {
            let model = fixture(case.trim_end_matches("-dora"));
            let told = report(&adapters(case), Some(&model)).unwrap();
            let beside = format!(" parameters beside {}\narchitecture: ", model.display());
            assert!(told.contains(words) && told.contains(&beside), "{told}");
            let refused = format!("{:#}", report(&adapters(case), None).unwrap_err());
            assert!(refused.contains("give the folder of that model with --base"), "{refused}");
        }
        let (of_classes, masked) =
            (fixtures.join("class_adapters/electra"), fixtures.join("encoders/electra"));
        let told = report(&of_classes, Some(&masked)).unwrap();
        assert!(told.contains(" weights, and a head for 4 classes: "), "{told}");
        let whole = report(&fixture("llama"), Some(&fixture("llama"))).unwrap_err().to_string();
        assert!(whole.ends_with("is a whole model: leave out --base"), "{whole}");
    }

    #[test]
    fn an_encoder_is_shown_and_tensors_of_other_heads_are_counted() {
        let folder =
            |case: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoders").join(case);
        for (case, words) in [
            (
                "bert",
                &["bert, 2 layers, width 16, 4 heads of width 4", "GELU by tanh", "positions from 0"][..],
            ),
            ("roberta", &["context 30", "positions from 2, 1 token type", "epsilon 1e-5"]),
            ("electra", &["2 token types, embeddings of width 8"]),
        ] {
            let told = report(&folder(case), None).unwrap();
            assert!(words.iter().all(|words| told.contains(words)), "{case}: {told}");
            assert!(!told.contains("left out"), "{told}");
        }
        let heads = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoder_heads");
        for (case, words) in [
            ("bert-classes", &["a head for 3 classes"][..]),
            ("bert-none", &["no head", "left out: 2 tensors, such as pooler.dense.bias", "0 of the head"]),
            ("electra-replaced", &["a head for replaced tokens", "289 of the head"]),
        ] {
            let told = report(&heads.join(case), None).unwrap();
            assert!(words.iter().all(|words| told.contains(words)), "{case}: {told}");
        }
        // With a pooler, and the names of the first versions.
        let old = tempfile::tempdir().unwrap();
        let bytes = std::fs::read(folder("bert").join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let named = file.tensors().into_iter().map(|(name, tensor)| {
            (
                name.replace("LayerNorm.weight", "LayerNorm.gamma")
                    .replace("LayerNorm.bias", "LayerNorm.beta"),
                tensor,
            )
        });
        let pooler = file.tensor("cls.predictions.transform.dense.weight").unwrap();
        let all: Vec<_> = named.chain([("bert.pooler.dense.weight".to_owned(), pooler)]).collect();
        safetensors::serialize_to_file(all, None, &old.path().join("model.safetensors")).unwrap();
        std::fs::copy(folder("bert").join("config.json"), old.path().join("config.json")).unwrap();
        let told = report(old.path(), None).unwrap();
        assert!(told.contains("left out: 1 tensor, such as bert.pooler.dense.weight"), "{told}");
    }

    #[test]
    fn a_folder_that_is_incomplete_or_of_another_model_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let copy = |name: &str| std::fs::copy(fixture("llama").join(name), folder.path().join(name)).unwrap();
        let refused = || format!("{:#}", report(folder.path(), None).unwrap_err());
        assert!(refused().contains("config.json"), "{}", refused());
        copy("config.json");
        assert!(refused().contains("model.safetensors"), "{}", refused());
        copy("model.safetensors");
        report(folder.path(), None).unwrap();
        let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
        for (from, to, words) in [
            (
                "\"hidden_act\": \"silu\"",
                "\"hidden_act\": \"relu\"",
                "hidden_act = \"relu\": silu is supported",
            ),
            ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", "has no tensor model.layers.3"),
            (
                "\"num_hidden_layers\": 3",
                "\"num_hidden_layers\": 2",
                "9 tensors that its config.json does not describe, such as model.layers.2",
            ),
            (
                "\"intermediate_size\": 24",
                "\"intermediate_size\": 32",
                "has the shape [24, 16], and its description means [32, 16]",
            ),
            ("\"use_cache\": true", "\"moe_layers\": true", "moe_layers = true: this key is not known"),
        ] {
            let changed = config.replace(from, to);
            assert_ne!(changed, config, "{from}");
            std::fs::write(folder.path().join("config.json"), changed).unwrap();
            assert!(refused().contains(words), "{to}: {}", refused());
        }
        std::fs::write(folder.path().join("config.json"), &config).unwrap();
        let whole = std::fs::read(folder.path().join("model.safetensors")).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
        assert!(refused().contains("is damaged or cut off: fetch it again"), "{}", refused());
        std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        std::fs::write(folder.path().join("pytorch_model.bin"), "pickle").unwrap();
        assert!(refused().contains("which may run code"), "{}", refused());
        let index = r#"{"weight_map": {"a": "../model.safetensors"}}"#;
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        assert!(refused().contains("which is not a file beside it"), "{}", refused());
        std::fs::write(folder.path().join("model.safetensors.index.json"), index.replace("../", "")).unwrap();
        assert!(refused().contains("model.safetensors is missing, and"), "{}", refused());
    }
}
