//! A new run, or the one that the store holds.

use std::path::Path;

use longhaul_common::config::RunConfig;
use longhaul_common::id::RunId;
use longhaul_proto::control::{CertificateIssuer, EnrolState};
use longhaul_proto::identity::{Authority, AuthorityError};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::http::ApiTokens;
use crate::store::{
    API_READ_TOKEN_FILE, API_TOKEN_FILE, Founding, Key, Store, StoreError, StoreName, read_small,
    write_private,
};
use longhaul_run::{Phase, RunState};

/// A run that can go on.
#[derive(Debug)]
pub struct Founded {
    /// Its durable state.
    pub state: RunState,
    /// Its authority and register.
    pub issuer: CertificateIssuer,
    /// Tokens for calls of the HTTP API.
    pub api_tokens: ApiTokens,
    /// Whether it was there before.
    pub taken: Taken,
}

/// How a run came to be led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is a new one.
    New,
    /// It goes on.
    Resumed,
    /// It was over, and goes on from this step.
    Extended {
        /// Steps that were done.
        done: u64,
    },
}

/// The run that a coordinator is started for.
#[derive(Clone, Debug)]
pub struct RequestedRun {
    /// Its configuration.
    pub config: RunConfig,
    /// Whether it goes on where it is over.
    pub extend: bool,
}

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
pub enum FoundError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The certificate authority.
    #[error("the run's certificate authority cannot be used: {0}")]
    Authority(#[from] AuthorityError),
    /// The system gives no random numbers.
    #[error("the system's random number generator failed")]
    NoRandomness,
    /// The configuration cannot be written down.
    #[error("a path in the configuration is not UTF-8: {0}")]
    Config(#[from] toml::ser::Error),
    /// The state is that of another run.
    #[error(
        "{} holds a run with another configuration: {differences}. To go on with that run, undo the change (a run that is over may have more \
         run.steps, with --extend); to begin another, use {}", place.name, place.another
    )]
    OtherConfig {
        /// Where the state is.
        place: StoreName,
        /// By key: old and new value.
        differences: String,
    },
    /// There is nothing to extend.
    #[error(
        "no run in {}, so --extend does not apply: use {} (that of the run), or omit --extend to begin a run",
        place.name, place.another
    )]
    NoRun {
        /// Where the state would be.
        place: StoreName,
    },
    /// The run is over, and cannot go on.
    #[error("{} holds a run that cannot be extended: {reason}. To begin another, use {}", place.name, place.another)]
    NotExtended {
        /// Where the state is.
        place: StoreName,
        /// Why.
        reason: String,
    },
    /// The API's token file.
    #[error("write {API_TOKEN_FILE} and {API_READ_TOKEN_FILE} into the state directory: {0}")]
    ApiToken(std::io::Error),
}

impl FoundError {
    /// Whether the command line or the configuration is wrong for the records present: nothing is broken.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        match self {
            Self::OtherConfig { .. } | Self::NoRun { .. } | Self::NotExtended { .. } => true,
            Self::Store(_)
            | Self::Authority(_)
            | Self::NoRandomness
            | Self::Config(_)
            | Self::ApiToken(_) => false,
        }
    }
}

/// Opens a state directory for the run that is wanted, and makes it if there is none. Where a run is to be extended and is not there, nothing is made: the
/// name may be mistyped.
///
/// # Errors
/// [`FoundError::Store`], or [`FoundError::NoRun`]
pub fn open_store(folder: &Path, wanted: &RequestedRun) -> Result<Store, FoundError> {
    if wanted.extend && !Store::is_in(folder)? {
        return Err(FoundError::NoRun { place: StoreName::of_folder(folder) });
    }
    let store = Store::open(folder)?;
    // A crash may have left one without a run.
    if wanted.extend && store.founding()?.is_none() {
        return Err(FoundError::NoRun { place: StoreName::of_folder(folder) });
    }
    Ok(store)
}

/// Takes up the run in the store, or founds one. A copy of the API's token goes into `folder`, for the command line.
///
/// # Errors
/// [`FoundError`]; a new run is written down completely or not at all.
pub fn found(
    store: &Store,
    folder: &Path,
    wanted: &RequestedRun,
    now_unix_s: u64,
) -> Result<Founded, FoundError> {
    let founded = match store.founding()? {
        Some(founding) => take_up(store, founding, wanted)?,
        None if wanted.extend => return Err(FoundError::NoRun { place: store.place().clone() }),
        None => begin(store, &wanted.config, now_unix_s)?,
    };
    let (state, issuer, taken) = founded;
    Ok(Founded { state, issuer, api_tokens: api_tokens(store, folder)?, taken })
}

/// Whether a run that was founded is the one that is wanted. One that is extended may have another number of steps.
///
/// # Errors
/// [`FoundError::OtherConfig`]
pub fn check_config(place: &StoreName, founding: &Founding, wanted: &RequestedRun) -> Result<(), FoundError> {
    let text = wanted.config.to_toml()?;
    if founding.config == text || wanted.extend && with_steps_of(founding, &wanted.config)? == founding.config
    {
        return Ok(());
    }
    let differences = differences(&founding.config, &text);
    Err(FoundError::OtherConfig { place: place.clone(), differences })
}

/// The configuration with the steps that the run was founded with.
fn with_steps_of(founding: &Founding, config: &RunConfig) -> Result<String, FoundError> {
    let mut config = config.clone();
    config.run.steps =
        RunConfig::parse(&founding.config).map_or(config.run.steps, |founded| founded.run.steps);
    Ok(config.to_toml()?)
}

/// A run, the issuer of its certificates, and how it came to be led.
pub type Parts = (RunState, CertificateIssuer, Taken);

fn take_up(store: &Store, founding: Founding, wanted: &RequestedRun) -> Result<Parts, FoundError> {
    check_config(store.place(), &founding, wanted)?;
    let authority = Authority::from_pem(&founding.authority)?;
    let missing = || StoreError::Corrupt {
        place: store.place().name.clone(),
        what: "the run's state is missing".to_owned(),
    };
    let (mut state, enrolment) = store.load()?.ok_or_else(missing)?;
    let config = wanted.config.to_toml()?;
    let (is_over, is_longer) = (state.phase == Phase::Finished, founding.config != config);
    // Asked for once more: it went on, and is over again.
    let is_done = !is_longer && state.rounds.ledger.through().0 >= state.rounds.schedule.rounds();
    if !is_over && !is_longer || is_over && (!wanted.extend || is_done) {
        return Ok((state, CertificateIssuer::new(authority, enrolment), Taken::Resumed));
    }
    let refused = |reason| FoundError::NotExtended { place: store.place().clone(), reason };
    if !is_over {
        return Err(refused("it is not over yet, so its steps cannot change".to_owned()));
    }
    if is_longer && wanted.config.privacy.is_some() {
        return Err(refused("its [privacy] budget covers only its original steps".to_owned()));
    }
    let done = state.rounds.schedule.steps_of(state.rounds.ledger.through()).start;
    state.extend(wanted.config.run.steps).map_err(refused)?;
    store.found(&Founding { config, ..founding }, &state, &enrolment)?;
    Ok((state, CertificateIssuer::new(authority, enrolment), Taken::Extended { done }))
}

fn begin(store: &Store, config: &RunConfig, now_unix_s: u64) -> Result<Parts, FoundError> {
    begin_as(store, config, RunState::new(new_run()?, config), now_unix_s)
}

/// Draws the id of a new run.
///
/// # Errors
/// [`FoundError::NoRandomness`]
pub fn new_run() -> Result<RunId, FoundError> {
    Ok(RunId(random()?))
}

/// Founds a run with this state.
///
/// # Errors
/// [`FoundError`]; the run is written down completely or not at all.
pub fn begin_as(
    store: &Store,
    config: &RunConfig,
    state: RunState,
    now_unix_s: u64,
) -> Result<Parts, FoundError> {
    let authority = Authority::create(state.run, now_unix_s)?;
    let enrolment = EnrolState::default();
    let founding = Founding { run: state.run, config: config.to_toml()?, authority: authority.to_pem() };
    store.found(&founding, &state, &enrolment)?;
    Ok((state, CertificateIssuer::new(authority, enrolment), Taken::New))
}

fn api_tokens(store: &Store, folder: &Path) -> Result<ApiTokens, FoundError> {
    Ok(ApiTokens {
        write: api_token(store, Key::ApiToken, &folder.join(API_TOKEN_FILE))?.into(),
        read: api_token(store, Key::ApiReadToken, &folder.join(API_READ_TOKEN_FILE))?.into(),
    })
}

/// A token in the store; a state directory of an earlier release has it in its file alone.
fn api_token(store: &Store, key: Key, path: &Path) -> Result<String, FoundError> {
    let filed = read_small(path).map_err(FoundError::ApiToken)?.filter(|token| !token.is_empty());
    let token = match (store.api_token(key)?, &filed) {
        (Some(stored), _) => stored,
        (None, filed) => {
            let token = match filed {
                Some(filed) => filed.clone(),
                None => random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect(),
            };
            store.put_api_token(key, &token)?;
            token
        }
    };
    if filed.as_ref() != Some(&token) {
        write_private(path, &token).map_err(FoundError::ApiToken)?;
    }
    Ok(token)
}

fn random<const N: usize>() -> Result<[u8; N], FoundError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| FoundError::NoRandomness)?;
    Ok(bytes)
}

/// The keys that differ between two configurations: `train.batch was 32 and is 64`.
fn differences(before: &str, after: &str) -> String {
    differences_in(before, after, |_| true)
}

/// The same, of some keys.
pub fn differences_in(before: &str, after: &str, counts: impl Fn(&str) -> bool) -> String {
    let (before, after) = (leaves(before), leaves(after));
    let shown = |value: Option<&String>| value.cloned().unwrap_or_else(|| "unset".to_owned());
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let differing = keys.into_iter().filter(|key| counts(key) && before.get(*key) != after.get(*key));
    let all: Vec<String> = differing
        .map(|key| format!("{key} was {} and is {}", shown(before.get(key)), shown(after.get(key))))
        .collect();
    all.join(", ")
}

fn leaves(text: &str) -> std::collections::BTreeMap<String, String> {
    // Both texts were written by `RunConfig::to_toml`: tables of plain values.
    let tables: toml::Table = toml::from_str(text).unwrap_or_default();
    let mut leaves = std::collections::BTreeMap::new();
    for (table, values) in &tables {
        for (key, value) in values.as_table().into_iter().flatten() {
            leaves.insert(format!("{table}.{key}"), value.to_string());
        }
    }
    leaves
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_900_000_000;

    fn config(extra: &str) -> RequestedRun {
        let text = include_str!("../../../examples/demo.toml").replace("batch = 32", extra);
        RequestedRun { config: RunConfig::parse(&text).unwrap(), extend: false }
    }

    #[test]
    fn a_run_is_taken_up_with_its_authority_and_token() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let first = found(&store, folder.path(), &config("batch = 32"), NOW).unwrap();
        let second = found(&store, folder.path(), &config("batch = 32"), NOW + 9).unwrap();
        assert_eq!((first.taken, second.taken), (Taken::New, Taken::Resumed));
        assert_eq!(first.state, second.state);
        assert_eq!(first.api_tokens.write, second.api_tokens.write);
        assert_eq!(first.api_tokens.read, second.api_tokens.read);
        assert_ne!(first.api_tokens.read, first.api_tokens.write);
        assert_eq!(first.issuer.authority().fingerprint(), second.issuer.authority().fingerprint());
    }

    #[test]
    fn the_apis_token_is_the_stores_and_each_machine_has_a_copy() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // As an earlier release left it.
        write_private(&one.path().join(API_TOKEN_FILE), "old").unwrap();
        let store = Store::open(one.path()).unwrap();
        assert_eq!(
            found(&store, one.path(), &config("batch = 32"), NOW).unwrap().api_tokens.write.as_ref(),
            "old"
        );
        assert_eq!(
            found(&store, other.path(), &config("batch = 32"), NOW).unwrap().api_tokens.write.as_ref(),
            "old"
        );
        assert_eq!(read_small(&other.path().join(API_TOKEN_FILE)).unwrap().as_deref(), Some("old"));
    }

    #[test]
    fn a_changed_configuration_is_refused_with_the_key_and_both_values() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        found(&store, folder.path(), &config("batch = 32"), NOW).unwrap();
        let message = found(&store, folder.path(), &config("batch = 64"), NOW).unwrap_err().to_string();
        assert!(
            message.contains("train.batch was 32 and is 64") && message.contains("--state-dir"),
            "{message}"
        );
    }
    /// A run that was stopped after three of its rounds.
    fn stopped(store: &Store, folder: &Path) -> RequestedRun {
        let wanted = config("batch = 32");
        let mut state = found(store, folder, &wanted, NOW).unwrap().state;
        state.rounds.ledger.count_through(longhaul_common::id::Round(3));
        (state.phase, state.requests.drain) = (Phase::Finished, true);
        store.put_state(&state).unwrap();
        wanted
    }

    #[test]
    fn a_run_that_is_over_goes_on_where_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut wanted = stopped(&store, folder.path());
        let seen = found(&store, folder.path(), &wanted, NOW).unwrap();
        assert_eq!((seen.taken, seen.state.phase), (Taken::Resumed, Phase::Finished));
        let (elsewhere, extending) =
            (tempfile::tempdir().unwrap(), RequestedRun { extend: true, ..wanted.clone() });
        let empty = Store::open(elsewhere.path()).unwrap();
        let message = found(&empty, elsewhere.path(), &extending, NOW).unwrap_err().to_string();
        assert!(message.starts_with("no run in the state directory "), "{message}");

        let schedule = wanted.config.round_schedule();
        let steps = wanted.config.run.steps + 50;
        wanted.config.run.steps = steps;
        let message = found(&store, folder.path(), &wanted, NOW).unwrap_err().to_string();
        assert!(message.contains("run.steps was") && message.contains("--extend"), "{message}");
        wanted.extend = true;
        let extended = found(&store, folder.path(), &wanted, NOW).unwrap();
        let done = schedule.steps_of(longhaul_common::id::Round(3)).start;
        assert_eq!((extended.taken, extended.state.phase), (Taken::Extended { done }, Phase::Gathering));
        assert!(!extended.state.requests.drain && extended.state.rounds.schedule.steps == steps);

        // The same command again, as its coordinator was restarted; and a further number meanwhile.
        let again = found(&store, folder.path(), &wanted, NOW).unwrap();
        assert_eq!((again.taken, &again.state), (Taken::Resumed, &extended.state));
        wanted.config.run.steps += 1;
        let message = found(&store, folder.path(), &wanted, NOW).unwrap_err().to_string();
        assert!(message.contains("it is not over yet"), "{message}");
        wanted.config.run.steps = steps;
        let mut state = again.state;
        state.rounds.ledger.count_through(longhaul_common::id::Round(state.rounds.schedule.rounds()));
        state.phase = Phase::Finished;
        store.put_state(&state).unwrap();
        let over = found(&store, folder.path(), &wanted, NOW).unwrap();
        assert_eq!(
            (over.taken, over.state.phase),
            (Taken::Resumed, Phase::Finished),
            "the same command again"
        );
    }

    #[test]
    fn where_there_is_no_run_to_extend_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = config("batch = 32");
        let extending = RequestedRun { extend: true, ..wanted.clone() };
        let mistyped = folder.path().join("mistyped");
        for state_dir in [mistyped.as_path(), folder.path()] {
            let error = open_store(state_dir, &extending).unwrap_err();
            assert!(matches!(error, FoundError::NoRun { .. }) && error.is_misuse(), "{error}");
            let named = format!("no run in the state directory {},", state_dir.display());
            assert!(error.to_string().starts_with(&named), "{error}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is made");
        }
        // Records without a run, as a crash leaves them at the beginning.
        drop(open_store(&mistyped, &wanted).unwrap());
        assert!(matches!(open_store(&mistyped, &extending), Err(FoundError::NoRun { .. })));
        let store = open_store(&mistyped, &wanted).unwrap();
        found(&store, &mistyped, &wanted, NOW).unwrap();
        drop(store);
        assert!(open_store(&mistyped, &extending).is_ok());
    }

    #[test]
    fn an_error_is_misuse_where_another_command_line_or_configuration_helps() {
        let place = || StoreName::of_folder(Path::new("state"));
        let not_utf_8 = <toml::ser::Error as serde::ser::Error>::custom("not UTF-8");
        let locked = StoreError::Locked { folder: "state".into() };
        for (error, is_misuse) in [
            (FoundError::Store(locked), false),
            (FoundError::Authority(AuthorityError::NoRandomness), false),
            (FoundError::NoRandomness, false),
            (FoundError::Config(not_utf_8), false),
            (FoundError::OtherConfig { place: place(), differences: String::new() }, true),
            (FoundError::NoRun { place: place() }, true),
            (FoundError::NotExtended { place: place(), reason: String::new() }, true),
            (FoundError::ApiToken(std::io::Error::other("no space left")), false),
        ] {
            assert_eq!(error.is_misuse(), is_misuse, "{error}");
        }
    }

    #[test]
    fn who_asks_for_less_or_for_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let stopped = stopped(&store, folder.path());
        for (change, reason) in [
            (&(|config: &mut RunConfig| config.run.steps = 99) as &dyn Fn(&mut RunConfig), "run.steps is 99"),
            (&|config| config.train.batch = 64, "train.batch was 32 and is 64"),
            (&|config| (config.run.steps, config.run.seed) = (9000, 99), "run.seed was"),
        ] {
            let mut wanted = RequestedRun { extend: true, ..stopped.clone() };
            change(&mut wanted.config);
            let message = found(&store, folder.path(), &wanted, NOW).unwrap_err().to_string();
            assert!(message.contains(reason), "{message}");
        }
    }
}
