//! Workers and coordinator must speak the same version of the protocol, so users must be able to look up which it is.

use grawa_comm::group::internals::messages::VERSION;

#[test]
fn the_changelog_names_the_version_of_the_protocol() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../CHANGELOG.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let named = text.split("Version ").filter_map(|rest| rest.split_once(" of the protocol")?.0.parse().ok());
    assert_eq!(named.max(), Some(VERSION), "the newest \"Version N of the protocol\" in CHANGELOG.md");
}
