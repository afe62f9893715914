//! Names in certificates.

use longhaul_common::id::{RunId, WorkerId};
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// Second name of every coordinator, dialled without knowledge of the run: the pinned authority then
/// determines the run.
pub const COORDINATOR_OF_ANY_RUN: &str = "coordinator.longhaul";

/// Peer that a certificate names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// The run's coordinator.
    Coordinator,
    /// A worker of the run.
    Worker(WorkerId),
}

/// Errors of names in certificates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not X.509, or with a damaged name extension.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// No name is one of this run.
    #[error("the certificate names {found:?}, which is not in run {run}")]
    Stranger {
        /// Names found.
        found: Vec<String>,
        /// Run expected.
        run: RunId,
    },
}

impl PeerName {
    /// Returns the name in a certificate, which is also the server name to dial: `w7.<run id>.longhaul`.
    #[must_use]
    pub fn in_run(self, run: RunId) -> String {
        match self {
            Self::Coordinator => format!("coordinator.{run}.longhaul"),
            Self::Worker(worker) => format!("{worker}.{run}.longhaul"),
        }
    }

    /// Parses a name; `None`: not one of this run, or not in the form of [`Self::in_run`].
    #[must_use]
    pub fn parse(name: &str, run: RunId) -> Option<Self> {
        let (label, _) = name.split_once('.')?;
        let parsed = match label.strip_prefix('w') {
            Some(number) => Self::Worker(WorkerId(number.parse().ok()?)),
            None => Self::Coordinator,
        };
        (parsed.in_run(run) == name).then_some(parsed)
    }

    /// Returns the peer that a certificate names. Does not check the signature.
    ///
    /// # Errors
    /// [`NameError`] if it names no member of this run.
    pub fn of_certificate(certificate: &CertificateDer<'_>, run: RunId) -> Result<Self, NameError> {
        let (_, parsed) = parse_x509_certificate(certificate).map_err(|_| NameError::Unreadable)?;
        let extension = parsed.subject_alternative_name().map_err(|_| NameError::Unreadable)?;
        let names: Vec<&str> = extension
            .iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| if let GeneralName::DNSName(dns) = name { Some(*dns) } else { None })
            .collect();
        names.iter().find_map(|name| Self::parse(name, run)).ok_or_else(|| NameError::Stranger {
            found: names.iter().map(|name| (*name).to_owned()).collect(),
            run,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId([0xab; 16]);

    #[test]
    fn names_survive_their_text_form() {
        for name in
            [PeerName::Coordinator, PeerName::Worker(WorkerId(0)), PeerName::Worker(WorkerId(u32::MAX))]
        {
            assert_eq!(PeerName::parse(&name.in_run(RUN), RUN), Some(name));
            assert_eq!(PeerName::parse(&name.in_run(RUN), RunId([1; 16])), None);
        }
        assert_eq!(PeerName::Worker(WorkerId(7)).in_run(RUN), format!("w7.{}.longhaul", "ab".repeat(16)));
    }

    #[test]
    fn a_name_has_one_spelling_only() {
        let run = RUN.to_string();
        for name in [
            format!("w07.{run}.longhaul"),
            format!("w+7.{run}.longhaul"),
            format!("W7.{run}.longhaul"),
            format!("w7.{}.longhaul", run.to_uppercase()),
            format!("w4294967296.{run}.longhaul"),
            format!("w7.{run}.longhaul."),
            format!("x.{run}.longhaul"),
            COORDINATOR_OF_ANY_RUN.to_owned(),
            String::new(),
        ] {
            assert_eq!(PeerName::parse(&name, RUN), None, "{name}");
        }
    }
}
