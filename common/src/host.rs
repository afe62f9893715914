//! Host names in URLs and headers.

use std::net::IpAddr;

/// Whether a host, or an IPv6 address with or without brackets, is the local machine, whose traffic no other
/// machine sees. Does not resolve names.
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_localhost_and_what_loops_back() {
        assert!(["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"].into_iter().all(is_this_machine));
        assert!(
            !["", "localhost.example.org", "10.0.0.7", "[2001:db8::1]", "head"]
                .into_iter()
                .any(is_this_machine)
        );
    }
}
