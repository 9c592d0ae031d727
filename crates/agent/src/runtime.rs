//! Whether a container runtime answers.

use leadsman_cri::Runtime;

/// Name and version of the container runtime at this endpoint.
///
/// # Errors
/// Why it does not answer, with the endpoint in it.
pub async fn runtime_version(endpoint: &str) -> Result<String, String> {
    let runtime = Runtime::connect_lazily(endpoint).map_err(|error| error.to_string())?;
    let version = runtime
        .read_version()
        .await
        .map_err(|error| error.to_string())?;
    Ok(version.to_string())
}
