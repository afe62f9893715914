//! The kinds of evaluation tasks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A form of questions, with its prompts and scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    /// ARC (Clark et al. 2018, arXiv 1803.05457), and others of its form, such as OpenBookQA in it.
    Arc,
    /// HellaSwag (Zellers et al. 2019, arXiv 1905.07830).
    HellaSwag,
    /// MMLU (Hendrycks et al. 2020, arXiv 2009.03300).
    Mmlu,
    /// PIQA (Bisk et al. 2019, arXiv 1911.11641).
    Piqa,
    /// WinoGrande (Sakaguchi et al. 2019, arXiv 1907.10641), by partial evaluation (Trinh and Le 2018, arXiv 1806.02847).
    WinoGrande,
    /// GSM8K (Cobbe et al. 2021, arXiv 2110.14168).
    Gsm8k,
    /// Any prompt with the answer that the model must generate.
    #[serde(rename = "exact-match")]
    ExactMatch,
}

impl TaskKind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Arc, Self::HellaSwag, Self::Mmlu, Self::Piqa, Self::WinoGrande, Self::Gsm8k, Self::ExactMatch];

    /// Returns its name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Arc => "arc",
            Self::HellaSwag => "hellaswag",
            Self::Mmlu => "mmlu",
            Self::Piqa => "piqa",
            Self::WinoGrande => "winogrande",
            Self::Gsm8k => "gsm8k",
            Self::ExactMatch => "exact-match",
        }
    }

    /// Returns its columns, in words.
    #[must_use]
    pub fn columns(self) -> &'static str {
        match self {
            Self::Arc => "question, choices (text, label), answerKey",
            Self::HellaSwag => "activity_label, ctx_a, ctx_b, endings, label",
            Self::Mmlu => "question, choices, answer; or question, A, B, C, D, answer",
            Self::Piqa => "goal, sol1, sol2, label",
            Self::WinoGrande => "sentence, option1, option2, answer",
            Self::Gsm8k => "question, answer (with `#### `)",
            Self::ExactMatch => "prompt, completion; or question, answer",
        }
    }

    /// Returns the names of its measures in lm-evaluation-harness: that of the likeliest answer, or of the expected one; and, where it has two, that of the likeliest
    /// by length, or of the last number.
    #[must_use]
    pub fn measures(self) -> &'static [&'static str] {
        match self {
            Self::Arc | Self::HellaSwag | Self::Piqa => &["acc", "acc_norm"],
            Self::Mmlu | Self::WinoGrande => &["acc"],
            Self::Gsm8k => &["exact_match_strict", "exact_match_flexible"],
            Self::ExactMatch => &["exact_match"],
        }
    }

    /// Whether answers are generated.
    #[must_use]
    pub fn generates(self) -> bool {
        matches!(self, Self::Gsm8k | Self::ExactMatch)
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TaskKind {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let plain = |name: &str| name.to_ascii_lowercase().replace('_', "-");
        Self::ALL.into_iter().find(|kind| plain(kind.name()) == plain(name)).ok_or(())
    }
}
