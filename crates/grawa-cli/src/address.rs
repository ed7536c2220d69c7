//! Addresses on the command line.

use crate::failure::Failure;

/// A host and a port as the user wrote them. The host is not looked up here.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':').filter(|(host, port)| {
        let is_host =
            !host.is_empty() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
        is_host && port.parse::<u16>().is_ok()
    });
    let expected =
        "expected a host and a port up to 65535, as in 10.0.0.1:7117, gpu3.local:7117 or [::1]:7117";
    parts.map(|_| text.to_owned()).ok_or_else(|| expected.to_owned())
}

/// Checks that this process can listen there now, before anything is written.
pub(crate) fn check_free(address: &str) -> Result<(), Failure> {
    let wrong =
        |error| format!("cannot listen at {address}: {error}; give another, or port 0 for any that is free");
    std::net::TcpListener::bind(address).map(drop).map_err(|error| Failure::Machine(wrong(error)))
}

/// An address, or none.
pub(crate) fn address_or_none(text: &str) -> Result<String, String> {
    match text {
        "none" => Ok(text.to_owned()),
        _ => address(text).map_err(|why| format!("{why}; or none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["127.0.0.1:0", "host:65535", "[::1]:7117", "[::]:0"] {
            assert_eq!(address(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "nonsense",
            "127.0.0.1",
            ":7117",
            "host:",
            "host:x",
            "host:65536",
            "host:-1",
            "::1:7117",
            "none",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert!(address_or_none("none").is_ok() && address_or_none("non").is_err());
    }
}
