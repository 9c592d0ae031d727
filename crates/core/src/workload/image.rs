//! Names of images, as far as two of them are compared.

use std::borrow::Cow;

/// The registry of a name without one, and the folder of its images without one.
const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_FOLDER: &str = "library/";
const DEFAULT_TAG: &str = "latest";

/// Whether two names are of one image: `nginx` and `docker.io/library/nginx:latest` are. A runtime reports the full name
/// (`ParseDockerRef` in `github.com/distribution/reference`, `helpers.go` and `normalize.go`).
pub fn names_one_image(one: &str, other: &str) -> bool {
    one == other || Reference::parse(one) == Reference::parse(other)
}

/// The digest in a name of an image, if it has one.
pub fn digest(name: &str) -> Option<&str> {
    name.split_once('@').map(|(_, digest)| digest)
}

#[derive(PartialEq)]
struct Reference<'a> {
    registry: &'a str,
    path: Cow<'a, str>,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

impl<'a> Reference<'a> {
    fn parse(name: &'a str) -> Self {
        let digest = digest(name);
        let name = name.split_once('@').map_or(name, |(name, _)| name);
        let (name, tag) = match name.rsplit_once(':') {
            // A colon before a slash stands before a port.
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (name, None),
        };
        let is_registry =
            |first: &str| first.contains(['.', ':']) || first == "localhost" || first.is_empty();
        let (registry, path) = match name.split_once('/') {
            // The former name of the registry (`legacyDefaultDomain`, `normalize.go`).
            Some(("index.docker.io", path)) => (DEFAULT_REGISTRY, path),
            Some((first, path)) if is_registry(first) => (first, path),
            _ => (DEFAULT_REGISTRY, name),
        };
        let path = if registry == DEFAULT_REGISTRY && !path.contains('/') {
            format!("{DEFAULT_FOLDER}{path}").into()
        } else {
            path.into()
        };
        // A digest stands for one image already (`TagNameOnly`, `normalize.go`).
        let tag = tag.or(digest.is_none().then_some(DEFAULT_TAG));
        Self {
            registry,
            path,
            tag,
            digest,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // SCS-55, SDF-32
    #[rstest]
    #[case("nginx", "docker.io/library/nginx:latest", true)]
    #[case("nginx:1.23", "docker.io/library/nginx:1.23", true)]
    #[case("nginx:1.23", "index.docker.io/library/nginx:1.23", true)]
    #[case("nginx:1.23", "docker.io/library/nginx:1.24", false)]
    #[case("nginx:1.23", "nginx", false)]
    #[case("team/log:1", "docker.io/team/log:1", true)]
    #[case("team/log:1", "docker.io/library/log:1", false)]
    #[case("registry.example/log", "registry.example/log:latest", true)]
    #[case("registry.example/log", "docker.io/registry.example/log", false)]
    #[case("registry:5000/log", "registry:5000/log:latest", true)]
    #[case("localhost/log:1", "docker.io/localhost/log:1", false)]
    #[case("log@sha256:a", "docker.io/library/log@sha256:a", true)]
    #[case("log@sha256:a", "log@sha256:b", false)]
    fn names_are_completed_before_they_are_compared(
        #[case] one: &str,
        #[case] other: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(names_one_image(one, other), expected);
        assert_eq!(names_one_image(other, one), expected);
    }
}
