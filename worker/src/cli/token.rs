//! Sources of a join token: the command line, the environment, or a file.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use longhaul_proto::identity::{TOKEN_PREFIX, Token};

/// Limit on bytes read from a token file: a join line has a few hundred.
const TOKEN_FILE_BYTES_MAX: u64 = 64 << 10;

/// The options as typed.
#[derive(Debug, Args)]
#[group(id = "join_token", multiple = true)]
struct Typed {
    /// The join token that the coordinator printed.
    #[arg(long, env = "LONGHAUL_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the token or the whole join line, as written by `coordinator up --token-file`. Other users of the machine can read a command line, but not a
    /// file of mode 0600.
    #[arg(long, value_name = "FILE", env = "LONGHAUL_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

/// The join token of a command: at most one of the two fields is set.
///
/// The command line takes precedence over the environment. Both options on the command line are an error; of the two variables, the token
/// itself takes precedence.
#[derive(Debug)]
pub struct TokenArgs {
    /// The token itself.
    pub token: Option<String>,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
}

impl Args for TokenArgs {
    fn augment_args(command: Command) -> Command {
        Typed::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Typed::augment_args_for_update(command)
    }
}

impl FromArgMatches for TokenArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let Typed { token, token_file } = Typed::from_arg_matches(matches)?;
        let is_typed = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        if token.is_none() || token_file.is_none() {
            return Ok(Self { token, token_file });
        }
        match (is_typed("token"), is_typed("token_file")) {
            (true, true) => {
                let message = "the argument '--token' cannot be used with '--token-file <FILE>'\n";
                Err(Error::raw(ErrorKind::ArgumentConflict, message))
            }
            (false, true) => Ok(Self { token: None, token_file }),
            (_, false) => Ok(Self { token, token_file: None }),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl TokenArgs {
    /// Returns the token; `None`: none was given.
    ///
    /// # Errors
    /// The file cannot be read or has no token in it, or the token is damaged.
    pub fn read(&self) -> Result<Option<Token>> {
        if let Some(token) = &self.token {
            return token.trim().parse().context("read the join token").map(Some);
        }
        self.token_file.as_deref().map(read_file).transpose()
    }
}

fn read_file(path: &Path) -> Result<Token> {
    let shown = path.display();
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text))
        .with_context(|| format!("read the join token from {shown}"))?;
    let token = text.split_whitespace().find(|word| word.starts_with(TOKEN_PREFIX));
    let token = token.with_context(|| {
        format!("{shown} holds no join token, a word that begins with {TOKEN_PREFIX}: `coordinator token create` prints one")
    })?;
    token.parse().with_context(|| format!("read the join token in {shown}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command, JoinArgs};

    const TOKEN: &str = "lh1.041061050r3ggwv9f1t6asbe41h7jx35ecgj28d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mnr91zgp";

    fn join(arguments: &[&str]) -> Result<JoinArgs, String> {
        let line = ["worker", "join", "head:4800"].iter().chain(arguments);
        match Cli::try_parse_from(line).map_err(|error| error.to_string())?.command {
            Command::Join(args) => Ok(args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn a_token_comes_from_the_command_line_or_from_a_file_with_it_or_with_the_join_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let from_file = || join(&["--token-file", file.to_str().unwrap()]).unwrap().join_token();
        let given = join(&["--token", TOKEN]).unwrap().join_token().unwrap();
        for text in [format!("{TOKEN}\n"), format!("worker join head:4800 --token {TOKEN} --site SITE\n")] {
            fs::write(&file, text).unwrap();
            assert_eq!(from_file().unwrap().to_string(), given.to_string());
        }
        for (text, error) in [("", "holds no join token"), ("lh1.x", "read the join token in")] {
            fs::write(&file, text).unwrap();
            assert!(format!("{:#}", from_file().unwrap_err()).contains(error), "{text}");
        }
        fs::remove_file(&file).unwrap();
        assert!(format!("{:#}", from_file().unwrap_err()).contains("read the join token from"));
    }

    #[test]
    fn one_of_the_two_is_needed_and_both_on_the_command_line_are_too_many() {
        assert!(join(&[]).unwrap_err().contains("--token"));
        assert!(join(&["--token", TOKEN, "--token-file", "x"]).unwrap_err().contains("cannot be used with"));
    }

    #[test]
    fn a_file_without_an_end_is_not_read_to_it() {
        let error = join(&["--token-file", "/dev/zero"]).unwrap().join_token().unwrap_err();
        assert!(format!("{error:#}").contains("holds no join token"), "{error:#}");
    }
}
