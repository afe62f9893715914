//! Keys of transformers, DeepSpeed, torchtitan, axolotl and other tools, with our equivalents.

/// Names of one setting in other tools, and its equivalent.
struct Other {
    names: &'static [&'static str],
    /// Our key and a line of `run.toml`, or the reason why none exists.
    here: &'static str,
}

const fn other(names: &'static [&'static str], here: &'static str) -> Other {
    Other { names, here }
}

const OTHERS: [Other; 62] = [
    other(
        &[
            "gradient_accumulation_steps",
            "grad_accum",
            "accumulate_grad_batches",
            "gradient_accumulation",
            "gas",
            "accumulation_steps",
        ],
        "a result of two sizes: [train] batch = 32 (all samples of a step, over all workers) and micro_batch = 8 (what a worker computes at once)",
    ),
    other(
        &["train_batch_size", "global_batch_size", "batch_size", "effective_batch_size"],
        "[train] batch = 32, all samples of a step, over all workers",
    ),
    other(
        &[
            "per_device_train_batch_size",
            "train_micro_batch_size_per_gpu",
            "micro_batch_size",
            "local_batch_size",
            "device_batch_size",
        ],
        "[train] micro_batch = 8, what a worker computes at once; batch is that of a step over all workers",
    ),
    other(
        &[
            "eval_steps",
            "eval_interval",
            "evaluation_steps",
            "val_check_interval",
            "evals_per_epoch",
            "eval_every",
        ],
        "[train] evaluate_every_rounds = 40; a round is each exchange, every sync.every steps",
    ),
    other(
        &["eval_iters", "eval_batches", "limit_val_batches", "per_device_eval_batch_size", "eval_batch_size"],
        "[train] evaluate_batches = 8, each of micro_batch samples",
    ),
    other(
        &[
            "save_steps",
            "save_interval",
            "checkpoint_interval",
            "checkpoint_every",
            "saves_per_epoch",
            "save_every",
            "interval",
        ],
        "[checkpoint] every_rounds = 20; a round is each exchange, every sync.every steps",
    ),
    other(
        &["save_total_limit", "keep_latest_k", "max_checkpoints", "keep_last"],
        "[checkpoint] keep = 2, the newest; evaluate.keep_best keeps the best besides",
    ),
    other(
        &["load_best_model_at_end", "metric_for_best_model", "greater_is_better", "save_best", "save_top_k"],
        "[evaluate] keep_best = true, by the held-out loss; `coordinator checkpoints export OUT --best` exports it",
    ),
    other(
        &["early_stopping_patience", "early_stopping", "early_stop_patience"],
        "[evaluate] patience = 3, in evaluations",
    ),
    other(
        &["early_stopping_threshold", "early_stopping_delta", "early_stop_threshold"],
        "[evaluate] min_delta = 0.01, beside patience",
    ),
    other(
        &["output_dir", "dump_folder", "save_dir", "checkpoint_dir", "out_dir"],
        "[checkpoint] dir = \"checkpoints\"",
    ),
    other(
        &[
            "max_steps",
            "num_steps",
            "total_steps",
            "training_steps",
            "train_iters",
            "max_iters",
            "iterations",
            "num_training_steps",
        ],
        "[run] steps = 1000",
    ),
    other(
        &["num_train_epochs", "num_epochs", "epochs", "max_epochs"],
        "a number of steps, samples × epochs / train.batch; `worker data prepare` says how many samples there are. [run] steps = 1000",
    ),
    other(&["lr", "max_lr", "peak_lr", "base_lr"], "[train] learning_rate = 1e-3, the peak"),
    other(
        &["min_lr", "lr_min", "min_lr_ratio", "final_lr", "eta_min", "min_lr_factor", "cosine_min_lr_ratio"],
        "[train] final_learning_rate_share = 0.1, of the peak",
    ),
    other(
        &["warmup_iters", "warmup", "num_warmup_steps", "lr_warmup_steps", "warmup_num_steps"],
        "[train] warmup_steps = 20",
    ),
    other(
        &["warmup_ratio", "warmup_fraction", "warmup_proportion"],
        "[train] warmup_share = 0.05, of the run's steps",
    ),
    other(
        &[
            "num_decay_steps",
            "decay_ratio",
            "lr_decay_ratio",
            "cooldown_fraction",
            "lr_wsd_decay_iters",
            "cooldown_steps",
        ],
        "a share of the run's steps with schedule = \"wsd\": [train] decay_share = 0.2",
    ),
    other(
        &["lr_scheduler_type", "lr_scheduler", "scheduler", "lr_decay_style", "decay_type", "lr_schedule"],
        "[train] schedule = \"cosine\", \"linear\", \"constant\" or \"wsd\" (warmup_stable_decay), behind a linear warm-up of warmup_steps",
    ),
    other(
        &["optimizer", "optim", "optimizer_type", "optimizer_name"],
        "[train] optimiser = \"adamw\", \"muon\", \"sgd\", \"lion\" or \"adafactor\"",
    ),
    other(
        &["muon_lr", "muon_learning_rate", "matrix_lr", "muon_momentum", "ns_steps", "adjust_lr_fn"],
        "in the table train.muon: learning_rate, momentum, nesterov, steps and scale",
    ),
    other(&["adam_beta1", "beta_1"], "[train] beta1 = 0.9"),
    other(&["adam_beta2", "beta_2"], "[train] beta2 = 0.95"),
    other(&["betas", "adam_betas"], "[train] beta1 = 0.9 and beta2 = 0.95"),
    other(&["adam_epsilon", "eps", "adam_eps"], "[train] epsilon = 1e-8"),
    other(&["wd", "adam_weight_decay", "l2"], "[train] weight_decay = 0.1, on matrices only"),
    other(
        &[
            "max_grad_norm",
            "gradient_clipping",
            "clip_grad",
            "grad_clip",
            "clip_grad_norm",
            "gradient_clip_val",
            "max_norm",
        ],
        "[train] gradient_clip = 1.0",
    ),
    other(
        &["ema", "use_ema", "ema_rate", "model_ema", "model_ema_decay", "ema_beta"],
        "[train] ema_decay = 0.999",
    ),
    other(
        &["hidden_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob", "residual_dropout"],
        "[train] dropout = 0.1",
    ),
    other(&["lora_dropout"], "[train.lora] rank = 16, with dropout = 0.05 beside it"),
    other(&["attn_pdrop", "attention_probs_dropout_prob", "attn_dropout"], "[train] attention_dropout = 0.1"),
    other(&["label_smoothing_factor", "smoothing"], "[train] label_smoothing = 0.1"),
    other(
        &["z_loss_coef", "z_loss_weight", "z_loss_coefficient", "z_loss_multiplier"],
        "[train] z_loss = 1e-4",
    ),
    other(
        &["bf16", "fp16", "mixed_precision", "dtype", "torch_dtype", "amp", "mixed_precision_param", "tf32"],
        "[train] precision = \"bf16\", or \"f32\"",
    ),
    other(
        &[
            "gradient_checkpointing",
            "activation_checkpointing",
            "activation_checkpoint",
            "recompute_granularity",
            "recompute_activations",
            "checkpoint_activations",
        ],
        "[train] recompute = true",
    ),
    other(
        &[
            "max_seq_length",
            "seq_len",
            "seq_length",
            "sequence_len",
            "block_size",
            "max_length",
            "cutoff_len",
        ],
        "[data] sequence_length = 128; [model] context is the longest that the model may have",
    ),
    other(&["n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"], "[model] layers = 12"),
    other(
        &["n_embd", "hidden_size", "d_model", "dim", "embed_dim", "n_embed", "model_dim"],
        "[model] width = 768",
    ),
    other(&["n_head", "n_heads", "num_heads", "num_attention_heads"], "[model] heads = 12"),
    other(&["n_kv_heads", "num_key_value_heads", "num_query_groups", "n_kv_head"], "[model] kv_heads = 4"),
    other(
        &["intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "mlp_dim", "hidden_dim"],
        "[model] feed_forward_width = 3072",
    ),
    other(
        &["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length", "ctx_len"],
        "[model] context = 1024; [data] sequence_length sets the training length",
    ),
    other(
        &["vocab_size", "padded_vocab_size", "n_vocab"],
        "[model] vocabulary = 32000, or left out for the tokenizer's",
    ),
    other(
        &["tie_word_embeddings", "weight_tying", "tie_embeddings", "share_embeddings"],
        "[model] tied_embeddings = true",
    ),
    other(
        &[
            "pipeline_parallel_degree",
            "pipeline_model_parallel_size",
            "pp_size",
            "pipe_parallel_size",
            "pp",
            "pipeline_parallel_size",
        ],
        "[parallel] stages = 2",
    ),
    other(
        &["tensor_parallel_degree", "tensor_model_parallel_size", "tp_size", "tp", "tensor_parallel_size"],
        "[parallel] tensor = 2, within a site",
    ),
    other(
        &[
            "world_size",
            "nproc_per_node",
            "num_processes",
            "n_gpus",
            "nnodes",
            "data_parallel_size",
            "dp_size",
        ],
        "[run] workers = 4, one for each device",
    ),
    other(
        &["dataset", "datasets", "data_files", "train_file", "data_path", "train_data", "dataset_path"],
        "[data] path = \"text.txt\", or sources = [{ glob = \"data/*.jsonl\", field = \"text\" }]",
    ),
    other(
        &["adapter", "lora_r", "lora_rank", "peft", "peft_config", "use_lora"],
        "[train.lora] rank = 16, with the pretrained model in model.from",
    ),
    other(
        &["lora_alpha", "lora_dim"],
        "[train.lora] rank = 16, with alpha = 32, the numerator of the scale, beside it",
    ),
    other(
        &["lora_target_modules", "target_modules", "lora_target_linear", "lora_modules"],
        "[train.lora] rank = 16, with targets = [\"all-linear\"], or names of modules, beside it",
    ),
    other(
        &[
            "load_in_4bit",
            "load_in_8bit",
            "bnb_4bit_quant_type",
            "quantization",
            "quantization_bit",
            "bnb_4bit_compute_dtype",
        ],
        "[train.lora] rank = 16, with base = \"nf4\" (or int8, bf16), the format of the frozen weights, beside it",
    ),
    other(
        &[
            "assistant_only_loss",
            "completion_only_loss",
            "train_on_inputs",
            "train_on_prompt",
            "mask_history",
            "roles_to_train",
            "train_on_responses_only",
            "mask_prompt",
        ],
        "[data.conversations] train_on = \"assistant\", or \"all\"",
    ),
    other(
        &["sample_packing", "packed", "pack", "neat_packing", "packing_strategy", "padding_free"],
        "[data.conversations] packing = true",
    ),
    other(
        &["excess_length_strategy", "truncation_mode", "truncation_strategy", "overlong_filter"],
        "[data.conversations] too_long = \"cut\", or \"leave-out\"",
    ),
    other(
        &["chat_template_path", "chat_template_jinja", "jinja_template", "prompt_template", "chat_format"],
        "[data.conversations] chat_template = \"template.jinja\"; without it, that of the model",
    ),
    other(
        &["mlm_probability", "mlm", "mask_prob", "masked_lm_prob", "mask_probability", "masking_ratio"],
        "[data.masking] share = 0.15, for encoders",
    ),
    other(
        &["sentence1_key", "text_column_names", "text_column_name", "sentence_column", "text_column"],
        "[data.classification] text = \"text\", with text_pair for the second of a pair; of other data, field or column of a source",
    ),
    other(
        &[
            "label_column_name",
            "label_column",
            "label_names",
            "label2id",
            "id2label",
            "num_labels",
            "num_classes",
        ],
        "[data.classification] label = \"label\", the column, with labels = [\"negative\", \"positive\"], the classes in order",
    ),
    other(&["random_replace_prob", "random_token_prob"], "[data.masking] random = 0.1"),
    other(&["mask_replace_prob"], "[data.masking] masked = 0.8"),
    other(
        &[
            "conversation_column",
            "dataset_format",
            "prompt_style",
            "conversation_style",
            "field_messages",
            "messages_field",
        ],
        "[data.conversations] kind = \"messages\", with field or column of a source for another name of the list",
    ),
];

/// Returns the equivalent of another tool's key; `None`: unknown.
pub(super) fn here(key: &str) -> Option<&'static str> {
    let plain: String = key.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect();
    OTHERS.iter().find(|other| other.names.contains(&plain.as_str())).map(|other| other.here)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::RunConfig;

    const SMALL: &str = "[run]\nname = \"a\"\nworkers = 2\nsteps = 9\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n[data]\npath = \"a\"\nsequence_length = 8\n";

    #[test]
    fn each_name_is_answered_once_and_is_none_of_ours() {
        let names: Vec<&str> = OTHERS.iter().flat_map(|other| other.names).copied().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a name is there twice");
        for name in names {
            let message = RunConfig::parse(&format!("{SMALL}[train]\n{name} = 1")).unwrap_err().to_string();
            let expected = format!("unknown key `{name}`: here ");
            assert!(message.starts_with(&expected), "{message}");
        }
        assert_eq!(here("Gradient-Accumulation-Steps"), here("grad_accum"));
        assert_eq!(here("learning_rate"), None);
    }

    /// A line `[table] key = value` in an answer can be pasted.
    #[test]
    fn each_line_of_an_answer_is_read() {
        let mut lines = 0;
        for other in &OTHERS {
            let Some(at) = other.here.find('[') else { continue };
            let (table, rest) = other.here[at + 1..].split_once("] ").unwrap();
            let Some((key, value)) = rest.split_once(" = ") else { continue };
            if key.contains([' ', ',']) || table == "data" && key != "sequence_length" {
                continue;
            }
            let value = value.split([',', ';', ' ']).next().unwrap();
            let line = format!("{key} = {value}\n");
            let text = match SMALL.find(&format!("[{table}]\n")) {
                Some(at) => {
                    let plain: String = SMALL[at..]
                        .lines()
                        .filter(|line| !line.starts_with(&format!("{key} =")))
                        .map(|line| format!("{line}\n"))
                        .collect();
                    let whole = format!("{}{plain}", &SMALL[..at]);
                    whole.replacen(&format!("[{table}]\n"), &format!("[{table}]\n{line}"), 1)
                }
                None => format!("{SMALL}[{table}]\n{line}"),
            };
            // Its sizes may not fit the others'.
            if let Err(error) = RunConfig::parse(&text) {
                let message = error.to_string();
                assert!(
                    !message.contains("unknown key") && !message.starts_with("line"),
                    "{line}: {message}"
                );
            }
            lines += 1;
        }
        assert!(lines > 20, "{lines}");
    }
}
