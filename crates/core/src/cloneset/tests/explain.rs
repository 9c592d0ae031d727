//! What `kubectl leadsman explain` says of a set.

use serde::de::DeserializeOwned;
use serde_json::json;

use super::super::explain_set;
use super::cluster::{Cluster, Kind, SET};

/// The objects of a kind, as they are read of an API server.
fn read<K: DeserializeOwned>(cluster: &Cluster, kind: Kind) -> Vec<K> {
    let names = cluster.names(kind).into_iter();
    let object = |name: String| cluster.get(kind, &name).unwrap().to_string();
    names
        .map(|name| serde_json::from_str(&object(name)).unwrap())
        .collect()
}

fn explain(cluster: &Cluster, knows_claims: bool) -> Vec<String> {
    let set = read(cluster, Kind::Set).remove(0);
    let pods = (read(cluster, Kind::Pod), read(cluster, Kind::Revision));
    let claims = knows_claims.then(|| read(cluster, Kind::Claim));
    let explained = explain_set(set, pods, claims, cluster.time().wall);
    assert_eq!(explained.name, SET);
    explained.set
}

// CLS-14, CLS-15
#[test]
fn pods_that_are_missing_are_explained_by_their_claims() {
    let claim = json!({"metadata": {"name": "data"}, "spec": {}});
    let mut cluster = Cluster::with_set(json!({"replicas": 3, "volumeClaimTemplates": [claim]}));
    assert!(explain(&cluster, true).is_empty());
    // One terminates, and one is gone: its claim is there.
    let pods = cluster.active();
    cluster.delete_pod(&pods[0]);
    cluster.remove(Kind::Pod, &pods[1]);
    cluster.edit(&json!({"replicas": 4}));
    let said = "3 pods are missing: 1 about to be created, 1 created after their claims, 1 created once a pod or a claim of their \
                name, which terminates, is gone";
    assert_eq!(explain(&cluster, true), [said]);
    let said = "3 pods are missing: they are about to be created, after their claims";
    assert_eq!(explain(&cluster, false), [said]);
}
