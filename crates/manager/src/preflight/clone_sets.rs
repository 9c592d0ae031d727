//! Reading the `CloneSet`s that go, with their pods, when the release goes that has brought their CRD.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use leadsman_api::{CloneSet, Guarded};
use leadsman_process::ApiServer;
use leadsman_process::list::ListTarget;

use super::facts::{Lookup, lookup_all, lookup_reply, release_that_deletes};
use super::marks::read_pages;

/// The CRD of `CloneSet`.
pub(super) const CRD: &str = "clonesets.apps.kruise.io";

/// The sets of a CRD that a Helm release deletes when it is uninstalled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloneSetSurvey {
    /// The release.
    pub release: String,
    /// How many sets there are.
    pub sets: usize,
    /// How many pods they have, as their statuses say.
    pub pods: i64,
}

/// Reads them all; none if no release deletes their CRD.
pub(super) async fn read_clone_sets(client: &Client) -> Lookup<Option<CloneSetSurvey>> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = lookup_reply(crds.get_opt(CRD)).await?;
    let Some(release) = crd.as_ref().and_then(release_that_deletes) else {
        return Ok(None);
    };
    let mut survey = CloneSetSurvey {
        release,
        ..CloneSetSurvey::default()
    };
    let (server, target) = (
        ApiServer::new(client.clone()),
        ListTarget::all_of::<CloneSet>(),
    );
    let read = read_pages(&server, target, |set: Guarded<CloneSet>| {
        survey.sets += 1;
        if let Guarded::Decoded(set) = set {
            let replicas = set.status.as_ref().map_or(0, |status| status.replicas);
            survey.pods += i64::from(replicas);
        }
    });
    lookup_all(read).await?;
    Ok(Some(survey))
}
