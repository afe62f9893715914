//! Address of etcd, and the credentials.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use longhaul_common::host::is_this_machine;

/// Members of a cluster that are named: five are many.
const ENDPOINTS_MAX: usize = 16;

/// `etcd://host:port[,host:port]/prefix`, with additions from the environment.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    /// HOST:PORT of members of the cluster.
    pub endpoints: Vec<String>,
    /// Prefix of all keys of the run: `/` and a name, without a trailing slash.
    pub prefix: String,
    /// Name and password; none: etcd asks for none.
    pub login: Option<Login>,
    /// Files for TLS (`etcds://`).
    pub tls: Option<TlsFiles>,
}

/// Name and password of a user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

/// Files in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that may have signed etcd's.
    pub authority: Option<PathBuf>,
    /// This client's certificate.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// A malformed address. The input is not repeated, as it may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It does not begin as one.
    #[error("--state takes etcd://HOST:PORT[,HOST:PORT]/PREFIX, or etcds:// for TLS")]
    Scheme,
    /// A member of the cluster is not named as it should be.
    #[error(
        "--state: name the members of the etcd cluster as HOST:PORT, at most {ENDPOINTS_MAX}, separated by commas"
    )]
    Endpoint,
    /// There is no prefix.
    #[error(
        "--state: end the address with /PREFIX, a name unique to the run, of letters, digits and any of - _ . /"
    )]
    Prefix,
    /// There is a name without a password, or the other way round.
    #[error(
        "--state: etcd's user and password belong together: LONGHAUL_ETCD_USER and LONGHAUL_ETCD_PASSWORD"
    )]
    Login,
    /// An option is not known.
    #[error("--state: the options are ca, cert and key, each with the path of a PEM file")]
    Option,
    /// TLS cannot work like that.
    #[error(
        "--state: TLS needs the authority of etcd's certificate (LONGHAUL_ETCD_CA, or ?ca=FILE); a certificate of this \
         client's own (LONGHAUL_ETCD_CERT) needs its key (LONGHAUL_ETCD_KEY)"
    )]
    Tls,
    /// Options of TLS without TLS.
    #[error("--state: etcd:// has no TLS and takes no certificates: use etcds://")]
    NotTls,
}

impl EtcdAddress {
    /// Parses an address, with missing values from `variable`: the environment.
    ///
    /// # Errors
    /// [`AddressError`]
    pub fn read(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, AddressError> {
        let mut address: Self = text.parse()?;
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        match (&address.login, set("LONGHAUL_ETCD_USER"), set("LONGHAUL_ETCD_PASSWORD")) {
            (Some(login), _, Some(password)) => {
                address.login = Some(Login { user: login.user.clone(), password });
            }
            (Some(_), _, None) | (None, None, None) => {}
            (None, Some(user), Some(password)) => address.login = Some(Login { user, password }),
            (None, ..) => return Err(AddressError::Login),
        }
        if address.login.as_ref().is_some_and(|login| login.password.is_empty()) {
            return Err(AddressError::Login);
        }
        let Some(tls) = &mut address.tls else { return Ok(address) };
        let files = [
            ("LONGHAUL_ETCD_CA", &mut tls.authority),
            ("LONGHAUL_ETCD_CERT", &mut tls.certificate),
            ("LONGHAUL_ETCD_KEY", &mut tls.key),
        ];
        for (name, file) in files {
            *file = file.take().or_else(|| set(name).map(PathBuf::from));
        }
        let whole = tls.authority.is_some() && tls.certificate.is_some() == tls.key.is_some();
        if whole { Ok(address) } else { Err(AddressError::Tls) }
    }

    /// Whether the traffic crosses the network unencrypted.
    #[must_use]
    pub fn is_in_the_clear(&self) -> bool {
        let is_local = |endpoint: &String| {
            let host = endpoint.rsplit_once(':').map_or("", |(host, _)| host);
            is_this_machine(host)
        };
        self.tls.is_none() && !self.endpoints.iter().all(is_local)
    }
}

impl FromStr for EtcdAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(AddressError::Scheme)?;
        let mut tls = match scheme {
            "etcd" => None,
            "etcds" => Some(TlsFiles::default()),
            _ => return Err(AddressError::Scheme),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        read_options(options, tls.as_mut())?;
        let (authority, prefix) = rest.split_once('/').ok_or(AddressError::Prefix)?;
        // A password may have an @ in it, a host cannot.
        let (login, hosts) = match authority.rsplit_once('@') {
            None => (None, authority),
            Some((login, hosts)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                if user.is_empty() {
                    return Err(AddressError::Login);
                }
                (Some(Login { user: user.to_owned(), password: password.to_owned() }), hosts)
            }
        };
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        if endpoints.len() > ENDPOINTS_MAX || !endpoints.iter().all(|endpoint| is_host_port(endpoint)) {
            return Err(AddressError::Endpoint);
        }
        let prefix = prefix.trim_end_matches('/');
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if prefix.is_empty() || !prefix.chars().all(allowed) {
            return Err(AddressError::Prefix);
        }
        Ok(Self { endpoints, prefix: format!("/{prefix}"), login, tls })
    }
}

fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
    !host.is_empty() && host.chars().all(allowed) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn read_options(options: &str, tls: Option<&mut TlsFiles>) -> Result<(), AddressError> {
    if options.is_empty() {
        return Ok(());
    }
    let tls = tls.ok_or(AddressError::NotTls)?;
    for option in options.split('&') {
        let file = match option.split_once('=').ok_or(AddressError::Option)? {
            (_, "") => return Err(AddressError::Option),
            ("ca", path) => (&mut tls.authority, path),
            ("cert", path) => (&mut tls.certificate, path),
            ("key", path) => (&mut tls.key, path),
            _ => return Err(AddressError::Option),
        };
        *file.0 = Some(PathBuf::from(file.1));
    }
    Ok(())
}

/// Without name and password.
impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}{}", self.endpoints.join(","), self.prefix)
    }
}

impl fmt::Debug for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdAddress({self})")
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({}, …)", self.user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn an_address_names_the_members_of_the_cluster_and_a_prefix() {
        let address = EtcdAddress::read("etcd://a:2379,[::1]:2379/runs/first/", nothing).unwrap();
        assert_eq!(address.endpoints, ["a:2379", "[::1]:2379"]);
        assert_eq!((address.prefix.as_str(), address.login.clone()), ("/runs/first", None));
        assert_eq!(address.to_string(), "etcd://a:2379,[::1]:2379/runs/first");
        assert!(address.is_in_the_clear());
        let local = EtcdAddress::read("etcd://127.0.0.1:2379,localhost:1/x", nothing).unwrap();
        assert!(!local.is_in_the_clear());
    }

    #[test]
    fn what_is_wrong_is_named_and_what_was_given_is_not_repeated() {
        for (text, expected) in [
            ("http://root:secret@a:1/x", AddressError::Scheme),
            ("etcd:/root:secret@a:1/x", AddressError::Scheme),
            ("etcd://root:secret@a:1", AddressError::Prefix),
            ("etcd://root:secret@a:1/", AddressError::Prefix),
            ("etcd://root:secret@a:1/x y", AddressError::Prefix),
            ("etcd://root:secret@a/x", AddressError::Endpoint),
            ("etcd://root:secret@a:0/x", AddressError::Endpoint),
            ("etcd://a:1,,b:1/secret", AddressError::Endpoint),
            ("etcd://:secret@a:1/x", AddressError::Login),
            ("etcd://root@a:1/secret", AddressError::Login),
            ("etcd://a:1/x?ca=secret", AddressError::NotTls),
            ("etcds://a:1/x?roots=secret", AddressError::Option),
            ("etcds://a:1/x?ca=", AddressError::Option),
            ("etcds://a:1/secret", AddressError::Tls),
            ("etcds://a:1/x?ca=a&cert=secret", AddressError::Tls),
        ] {
            let error = EtcdAddress::read(text, nothing).unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_environment_adds_what_should_not_be_in_a_command_line() {
        let variable = |name: &str| match name {
            "LONGHAUL_ETCD_USER" => Some("run".to_owned()),
            "LONGHAUL_ETCD_PASSWORD" => Some("secret".to_owned()),
            "LONGHAUL_ETCD_CA" => Some("/ca.pem".to_owned()),
            _ => None,
        };
        let address = EtcdAddress::read("etcds://a:1/x?cert=c.pem&key=k.pem", variable).unwrap();
        let login = address.login.clone().unwrap();
        assert_eq!((login.user.as_str(), login.password.as_str()), ("run", "secret"));
        let path = |path: &str| Some(PathBuf::from(path));
        let files = TlsFiles { authority: path("/ca.pem"), certificate: path("c.pem"), key: path("k.pem") };
        assert_eq!(address.tls, Some(files));
        for shown in [format!("{address}"), format!("{address:?}"), format!("{login:?}")] {
            assert!(!shown.contains("secret"), "{shown}");
        }
        let in_the_url = EtcdAddress::read("etcd://me@a:1/x", variable).unwrap().login.unwrap();
        assert_eq!((in_the_url.user.as_str(), in_the_url.password.as_str()), ("me", "secret"));
        let alone = |name: &str| (name == "LONGHAUL_ETCD_USER").then(|| "run".to_owned());
        assert_eq!(EtcdAddress::read("etcd://a:1/x", alone), Err(AddressError::Login));
        let with_at = EtcdAddress::read("etcd://me:p@ss:w@a:1/x", nothing).unwrap().login.unwrap();
        assert_eq!(with_at.password, "p@ss:w");
    }
}
