//! What the manager may write of sets, of their revisions, of webhook configurations and of Secrets: its policies, asked by
//! the API server.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Error};
use leadsman_admission::{CONFIGURATION, OWNER, SECRET};
use leadsman_api::SidecarSet;
use leadsman_testkit::leadsman::{MANAGER, NAMESPACE};
use leadsman_tests::wait_for_answer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::pods::client_of;
use crate::Installation;

const SET: &str = "bound";

pub(super) async fn check_writes_of_own_objects(installation: &Installation) -> Result<()> {
    installation.allow_sidecar_sets().await?;
    let kubeconfig = installation
        .plane
        .kubeconfig_for(MANAGER, &["system:serviceaccounts"])?;
    let clients = Clients {
        manager: client_of(&kubeconfig).await?,
        manager_of_all_rights: impersonate_with_all_rights(installation, MANAGER).await?,
        administrator: installation.client.clone(),
    };
    clients.check_sets().await?;
    clients.check_revisions().await?;
    clients.check_secrets().await?;
    clients
        .check_configurations::<MutatingWebhookConfiguration>(
            "MutatingWebhookConfiguration",
            "for the creation of pods alone",
            &mutating(),
        )
        .await?;
    clients
        .check_configurations::<ValidatingWebhookConfiguration>(
            "ValidatingWebhookConfiguration",
            "of SidecarSets alone",
            &validating(),
        )
        .await
}

struct Clients {
    manager: Client,
    /// Its account, which nothing but its policies keeps from anything.
    manager_of_all_rights: Client,
    administrator: Client,
}

/// A client of an account that no role keeps from anything.
pub(super) async fn impersonate_with_all_rights(
    installation: &Installation,
    account: &str,
) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(installation.plane.admin_kubeconfig())?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.auth_info.impersonate = Some(account.to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    Ok(Client::try_from(config)?)
}

/// Why a request is refused; empty if it is not.
fn told<T>(answer: kube::Result<T>) -> Result<String> {
    match answer {
        Ok(_) => Ok(String::new()),
        Err(Error::Api(status)) => Ok(status.message),
        Err(other) => Err(other.into()),
    }
}

/// Whether a request was answered so: refused with this part of a message, or not at all if that is empty.
fn is_expected(what: &Value, told: &str, part: &str) -> Result<()> {
    let is_as_expected = if part.is_empty() {
        told.is_empty()
    } else {
        told.contains(part)
    };
    ensure!(is_as_expected, "{what}: {told:?} instead of {part:?}");
    Ok(())
}

fn post_dry() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

fn delete_dry() -> DeleteParams {
    DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    }
}

fn try_it() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}

impl Clients {
    async fn check_sets(&self) -> Result<()> {
        let set = json!({
            "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
            "metadata": {"name": SET, "annotations": {"example.com/theirs": "x"}},
            "spec": {"selector": {"matchLabels": {"app": "none"}}, "containers": [{"name": "c", "image": "i:1"}]},
        });
        let sets: Api<SidecarSet> = Api::all(self.administrator.clone());
        wait_for_answer("SidecarSets are served", || async {
            let set = serde_json::from_value(set.clone())?;
            Ok(sets.create(&PostParams::default(), &set).await.ok())
        })
        .await?;
        let metadata = "labels, owners and finalizers";
        let annotation = |key: &str| json!({"metadata": {"annotations": {key: "y"}}});
        let table = [
            (
                json!({"spec": {"containers": [{"name": "c", "image": "other:1"}]}}),
                "its spec stays as it is",
            ),
            (
                json!({"spec": {"injectionStrategy": {"paused": true}}}),
                "its spec stays as it is",
            ),
            (json!({"metadata": {"labels": {"a": "b"}}}), metadata),
            (
                json!({"metadata": {"finalizers": ["example.com/held"]}}),
                metadata,
            ),
            (
                annotation("sidecarset.leadsman.io/failure-policy"),
                "sidecarset.leadsman.io/failure-policy",
            ),
            (annotation("example.com/theirs"), "example.com/theirs"),
            (
                json!({"metadata": {"annotations": {"example.com/theirs": null}}}),
                "example.com/theirs",
            ),
            (annotation("kruise.io/sidecarset-hash"), ""),
            (annotation("kruise.io/sidecarset-hash-without-image"), ""),
        ];
        let of_manager: Api<SidecarSet> = Api::all(self.manager.clone());
        let patch = async |patch: &Value| {
            told(of_manager.patch(SET, &try_it(), &Patch::Merge(patch)).await)
        };
        wait_for_answer("the policy on sets is in force", || async {
            let (edit, part) = &table[0];
            Ok(patch(edit).await?.contains(part).then_some(()))
        })
        .await?;
        for (edit, part) in &table {
            is_expected(edit, &patch(edit).await?, part)?;
            let by_another = sets.patch(SET, &try_it(), &Patch::Merge(edit)).await;
            is_expected(edit, &told(by_another)?, "")?;
        }
        let all: Api<SidecarSet> = Api::all(self.manager_of_all_rights.clone());
        let neither = "it neither creates nor deletes any";
        let mut another = set.clone();
        another["metadata"]["name"] = json!("another");
        let answer = all
            .create(&post_dry(), &serde_json::from_value(another)?)
            .await;
        is_expected(&json!("create"), &told(answer)?, neither)?;
        let answer = all.delete(SET, &delete_dry()).await;
        is_expected(&json!("delete"), &told(answer)?, neither)
    }

    async fn check_revisions(&self) -> Result<()> {
        let sets: Api<SidecarSet> = Api::all(self.administrator.clone());
        let uid = sets.get(SET).await?.metadata.uid.context("no uid")?;
        let owner = |version: &str, kind: &str| json!([{"apiVersion": version, "kind": kind, "name": SET, "uid": uid, "controller": true}]);
        let revision = |name: &str, owner: Value| {
            json!({"metadata": {"name": name, "labels": {"a": "b"}, "ownerReferences": owner}, "revision": 1,
                "data": {"spec": {}}})
        };
        let of_a_set = owner("apps.kruise.io/v1beta1", "SidecarSet");
        let of_a_daemon_set = owner("apps/v1", "DaemonSet");
        let of_another_kind = owner("apps.kruise.io/v1alpha1", "DaemonSet");
        let of_another_group = owner("example.com/v1", "SidecarSet");
        let mut uncontrolled = of_a_set.clone();
        uncontrolled[0]["controller"] = json!(false);
        let all: Api<ControllerRevision> = Api::namespaced(self.administrator.clone(), NAMESPACE);
        for (name, owner) in [("own", &of_a_set), ("foreign", &of_a_daemon_set)] {
            let mut object = revision(name, owner.clone());
            object["metadata"]["annotations"] = json!({"theirs": "x"});
            let object = serde_json::from_value(object)?;
            all.create(&PostParams::default(), &object).await?;
        }
        let of_manager: Api<ControllerRevision> = Api::namespaced(self.manager.clone(), NAMESPACE);
        let foreign = "this one is of something else";
        let owners = "annotations, owners and finalizers";
        let table = [
            ("foreign", json!({"revision": 7}), foreign),
            (
                "own",
                json!({"metadata": {"ownerReferences": null}}),
                foreign,
            ),
            (
                "own",
                json!({"metadata": {"annotations": {"a": "b"}}}),
                owners,
            ),
            (
                "own",
                json!({"metadata": {"annotations": {"theirs": null}}}),
                owners,
            ),
            (
                "own",
                json!({"metadata": {"finalizers": ["example.com/held"]}}),
                owners,
            ),
            (
                "own",
                json!({"metadata": {"labels": {"a": "c"}}}),
                "but for the custom version: a",
            ),
            (
                "own",
                json!({"metadata": {"labels": {"apps.kruise.io/sidecarset-custom-version": "c"}}}),
                "",
            ),
            ("own", json!({"revision": 7}), ""),
        ];
        wait_for_answer("the policy on revisions is in force", || async {
            let (name, patch, part) = &table[0];
            let answer = of_manager
                .patch(name, &try_it(), &Patch::Merge(patch))
                .await;
            Ok(told(answer)?.contains(part).then_some(()))
        })
        .await?;
        for (name, patch, part) in &table {
            let answer = of_manager
                .patch(name, &try_it(), &Patch::Merge(patch))
                .await;
            is_expected(patch, &told(answer)?, part)?;
        }
        for (owner, part) in [
            (&of_a_set, ""),
            (&of_a_daemon_set, foreign),
            (&of_another_kind, foreign),
            (&of_another_group, foreign),
            (&uncontrolled, foreign),
            (&Value::Null, foreign),
        ] {
            let object = serde_json::from_value(revision("new", owner.clone()))?;
            let answer = of_manager.create(&post_dry(), &object).await;
            is_expected(owner, &told(answer)?, part)?;
        }
        for (name, part) in [("own", ""), ("foreign", foreign)] {
            let answer = of_manager.delete(name, &delete_dry()).await;
            is_expected(&json!(name), &told(answer)?, part)?;
        }
        Ok(())
    }

    async fn check_secrets(&self) -> Result<()> {
        const NAME: &str = "this one has another name";
        const TYPE: &str = "its type is kubernetes.io/tls or Opaque";
        const OWNED: &str = "its only owner is the Role";
        let tls = json!({"tls.crt": "", "tls.key": ""});
        let owner = |kind: &str, name: &str| json!([{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "name": name, "uid": "u"}]);
        let secret = |name: &str, kind: &str, owner: &Value| -> Result<Secret> {
            let metadata = json!({"name": name, "ownerReferences": owner, "annotations": {
                "kubernetes.io/service-account.name": "default",
            }});
            let object = json!({"metadata": metadata, "type": kind, "data": tls});
            Ok(serde_json::from_value(object)?)
        };
        let tls_type = "kubernetes.io/tls";
        let (role, none) = (owner("Role", OWNER), json!([]));
        let table = [
            ("other", tls_type, &role, NAME),
            (SECRET, "kubernetes.io/service-account-token", &none, TYPE),
            (SECRET, "example.com/any", &none, TYPE),
            (SECRET, tls_type, &owner("Role", "other"), OWNED),
            (SECRET, tls_type, &owner("ClusterRole", OWNER), OWNED),
            (SECRET, tls_type, &role, ""),
            (SECRET, tls_type, &none, ""),
            (SECRET, "Opaque", &role, ""),
        ];
        let secrets = |client: &Client| Api::<Secret>::namespaced(client.clone(), NAMESPACE);
        let of_manager = secrets(&self.manager);
        let create = async |(name, kind, owner, _): &(&str, &str, &Value, &str)| {
            let secret = secret(name, kind, owner)?;
            told(of_manager.create(&post_dry(), &secret).await)
        };
        wait_for_answer("the policy on Secrets is in force", || async {
            Ok(create(&table[0]).await?.contains(NAME).then_some(()))
        })
        .await?;
        for row in &table {
            is_expected(&json!(row), &create(row).await?, row.3)?;
        }
        let elsewhere: Api<Secret> = Api::namespaced(self.manager_of_all_rights.clone(), "default");
        let answer = elsewhere
            .create(&post_dry(), &secret(SECRET, tls_type, &role)?)
            .await;
        is_expected(&json!("in another namespace"), &told(answer)?, NAME)?;
        // One that somebody else has made keeps its owners.
        let theirs = owner("Role", "theirs");
        let of_others = secrets(&self.administrator);
        of_others
            .create(&PostParams::default(), &secret(SECRET, tls_type, &theirs)?)
            .await?;
        let gone = owner("ConfigMap", "gone");
        for (owner, part) in [(&theirs, ""), (&none, ""), (&role, ""), (&gone, OWNED)] {
            let answer = of_manager
                .replace(SECRET, &post_dry(), &secret(SECRET, tls_type, owner)?)
                .await;
            is_expected(owner, &told(answer)?, part)?;
        }
        of_others.delete(SECRET, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Applies configurations with one webhook each. `in_force` is a part of the refusal of the first.
    async fn check_configurations<C>(
        &self,
        kind: &str,
        in_force: &str,
        table: &[(Value, &str)],
    ) -> Result<()>
    where
        C: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let of_manager: Api<C> = Api::all(self.manager.clone());
        let apply = async |webhook: &Value| {
            let object = configuration(kind, CONFIGURATION, webhook);
            let answer = of_manager
                .patch(CONFIGURATION, &forced(), &Patch::Apply(object))
                .await;
            told(answer)
        };
        wait_for_answer("the policy on configurations is in force", || async {
            Ok(apply(&table[0].0).await?.contains(in_force).then_some(()))
        })
        .await?;
        for (webhook, part) in table {
            is_expected(webhook, &apply(webhook).await?, part)?;
        }
        self.check_configuration_of_others::<C>(kind, &table[0])
            .await
    }

    /// A webhook that others have added stays as it is, though the manager could not add it.
    async fn check_configuration_of_others<C>(
        &self,
        kind: &str,
        (refused, part): &(Value, &str),
    ) -> Result<()>
    where
        C: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        const NAME: &str = "of-others";
        let mut theirs = refused.clone();
        // Nobody answers it.
        theirs["name"] = json!("theirs.leadsman.test");
        theirs["namespaceSelector"] = json!({"matchLabels": {"no-such": "namespace"}});
        let of_others: Api<C> = Api::all(self.administrator.clone());
        let object = configuration(kind, NAME, &theirs);
        of_others
            .patch(NAME, &PatchParams::apply("others"), &Patch::Apply(object))
            .await?;
        let of_manager: Api<C> = Api::all(self.manager_of_all_rights.clone());
        let mut wider = json!({"name": theirs["name"]});
        wider["rules"] = json!([rule("", "nodes", &["CREATE"])]);
        for (webhook, part) in [(json!({}), ""), (refused.clone(), part), (wider, part)] {
            let object = configuration(kind, NAME, &webhook);
            let answer = of_manager
                .patch(NAME, &forced(), &Patch::Apply(object))
                .await;
            is_expected(&webhook, &told(answer)?, part)?;
        }
        of_others.delete(NAME, &DeleteParams::default()).await?;
        Ok(())
    }
}

/// A configuration with one webhook, which nobody serves.
fn configuration(kind: &str, name: &str, webhook: &Value) -> Value {
    let mut entry = json!({
        "name": "any.leadsman.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/any"}, "failurePolicy": "Ignore",
    });
    leadsman_tests::scene::merge(&mut entry, webhook.clone());
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "webhooks": [entry]})
}

fn forced() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::apply("a-thief").force()
    }
}

fn rule(group: &str, resource: &str, operations: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": operations})
}

fn mutating() -> Vec<(Value, &'static str)> {
    const ALONE: &str = "for the creation of pods alone";
    const LEAVES_OUT: &str = "leaves out kube-system and leadsman's namespace";
    let pods = || rule("", "pods", &["CREATE"]);
    let selecting = |key: &str, operator: &str, namespaces: &[&str]| {
        json!({"rules": [pods()], "failurePolicy": "Fail", "namespaceSelector": {"matchExpressions": [
            {"key": key, "operator": operator, "values": namespaces}]}})
    };
    let (name, both) = ("kubernetes.io/metadata.name", ["kube-system", NAMESPACE]);
    vec![
        (json!({"rules": [rule("", "secrets", &["CREATE"])]}), ALONE),
        (json!({"rules": [rule("*", "*", &["*"])]}), ALONE),
        (json!({"rules": [rule("*", "pods", &["CREATE"])]}), ALONE),
        (
            json!({"rules": [rule("", "pods", &["CREATE", "UPDATE"])]}),
            ALONE,
        ),
        (
            json!({"rules": [pods(), rule("", "nodes", &["CREATE"])]}),
            ALONE,
        ),
        (
            json!({"rules": [pods()], "failurePolicy": "Fail"}),
            LEAVES_OUT,
        ),
        (selecting(name, "NotIn", &["kube-system"]), LEAVES_OUT),
        (selecting(name, "NotIn", &[NAMESPACE]), LEAVES_OUT),
        (selecting(name, "In", &both), LEAVES_OUT),
        (selecting("tier", "NotIn", &both), LEAVES_OUT),
        (selecting(name, "NotIn", &both), ""),
        (json!({"rules": [pods()]}), ""),
    ]
}

fn validating() -> Vec<(Value, &'static str)> {
    const ALONE: &str = "of SidecarSets alone";
    let sets = || rule("apps.kruise.io", "sidecarsets", &["CREATE", "UPDATE"]);
    vec![
        (json!({"rules": [rule("", "pods", &["CREATE"])]}), ALONE),
        (
            json!({"rules": [rule("*", "sidecarsets", &["CREATE"])]}),
            ALONE,
        ),
        (
            json!({"rules": [sets(), rule("apps", "deployments", &["CREATE"])]}),
            ALONE,
        ),
        (
            json!({"rules": [rule("apps.kruise.io", "sidecarsets", &["*"])]}),
            ALONE,
        ),
        (
            json!({"rules": [rule("apps.kruise.io", "sidecarsets", &["CREATE", "DELETE"])]}),
            ALONE,
        ),
        (
            json!({"rules": [sets()], "failurePolicy": "Fail"}),
            "has failurePolicy Ignore",
        ),
        (json!({"rules": [sets()]}), ""),
    ]
}
