//! What `--advertise` takes.

/// Addresses that a join line may name.
const ADVERTISED_MAX: usize = 16;

/// `HOST:PORT[,HOST:PORT]`, each once.
pub(super) fn parse(text: &str) -> Result<String, String> {
    if text.split(',').count() > ADVERTISED_MAX {
        return Err(format!("at most {ADVERTISED_MAX} addresses"));
    }
    let mut addresses = Vec::new();
    for address in text.split(',').map(parse_host_port) {
        let address = address?;
        // So that all can be given one list, each behind an address of its own.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses.join(","))
}

fn parse_host_port(text: &str) -> Result<String, String> {
    let hint = "give HOST:PORT, as in head.example.org:4800";
    let (host, port) = text.rsplit_once(':').ok_or(hint)?;
    let valid =
        !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok_and(|p| p > 0);
    if valid { Ok(text.to_owned()) } else { Err(hint.to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn an_advertised_address_needs_a_port() {
        let given = |advertise: &str| {
            Cli::try_parse_from(["coordinator", "up", "--config", "run.toml", "--advertise", advertise])
        };
        for right in ["head.example.org:4800", "one:4800,two:4800"] {
            assert!(given(right).is_ok(), "{right}");
        }
        for wrong in ["head.example.org", ":4800", "head:0", "head:http", "one:4800,", "one:4800,two"] {
            assert!(given(wrong).unwrap_err().to_string().contains("give HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn an_address_that_is_advertised_twice_counts_once() {
        assert_eq!(parse("two:1,one:1,two:1"), Ok("two:1,one:1".to_owned()));
    }
}
