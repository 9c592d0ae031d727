//! OpenKruise's manager, as far as others see it.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::now;

const NAMESPACE: &str = "kruise-system";
const LEASE: &str = "kruise-manager";
/// A role that OpenKruise's chart makes.
const ROLE: &str = "kruise-manager-role";

/// It keeps its Lease, and is a pod with arguments, which runs where there is a node. It ends when dropped, without giving
/// its Lease back.
pub struct Neighbour {
    client: Client,
    holder: watch::Sender<String>,
    renewing: JoinHandle<()>,
}

impl Neighbour {
    /// Leads from now on, with these feature gates.
    ///
    /// # Errors
    /// The API server's.
    pub async fn start(client: &Client, pod: &str, gates: &str) -> Result<Self> {
        install(client).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = json!({"metadata": {"name": NAMESPACE, "labels": {"control-plane": "controller-manager"}}});
        match namespaces
            .create(&PostParams::default(), &serde_json::from_value(namespace)?)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other?),
        }
        let (holder, holds) = watch::channel(String::new());
        let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
        let neighbour = Self {
            client: client.clone(),
            holder,
            renewing: tokio::spawn(renew(leases, holds)),
        };
        neighbour.hand_over(pod, gates).await?;
        Ok(neighbour)
    }

    /// Another pod leads.
    ///
    /// # Errors
    /// The API server's.
    pub async fn hand_over(&self, pod: &str, gates: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let manifest = json!({
            "metadata": {"name": pod, "labels": {"control-plane": "controller-manager"}},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "manager",
                "image": "docker.io/local/target:1", "imagePullPolicy": "Never",
                // The shell does not read what comes after its script.
                "command": ["sh", "-c", "exec /target pause", "/manager"],
                "args": ["--enable-leader-election", "--v=4", format!("--feature-gates={gates}")]}]},
        });
        pods.create(&PostParams::default(), &serde_json::from_value(manifest)?)
            .await?;
        self.holder
            .send_replace(format!("{pod}_6a1e3f0e-6d0c-4a52-9a3e-0d8f3f6d2a11"));
        Ok(())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// Makes what shows that OpenKruise is installed.
///
/// # Errors
/// The API server's.
pub async fn install(client: &Client) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let role = serde_json::from_value(json!({"metadata": {"name": ROLE}, "rules": []}))?;
    match roles.create(&PostParams::default(), &role).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => drop(other?),
    }
    Ok(())
}

/// Removes what [`install`] has made. Its manager goes on.
///
/// # Errors
/// The API server's.
pub async fn uninstall(client: &Client) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.delete(ROLE, &DeleteParams::default()).await?;
    Ok(())
}

/// Removes the Lease, so that nobody waits for its end.
///
/// # Errors
/// The API server's.
pub async fn remove_lease(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    leases.delete(LEASE, &DeleteParams::default()).await?;
    Ok(())
}

/// As client-go does, in less time.
async fn renew(leases: Api<Lease>, mut holder: watch::Receiver<String>) {
    let params = PostParams {
        field_manager: Some("kruise-manager".into()),
        ..PostParams::default()
    };
    loop {
        let name = holder.borrow_and_update().clone();
        if !name.is_empty() {
            let now = MicroTime(now());
            let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 3, "renewTime": now,
                "acquireTime": now, "leaseTransitions": 0});
            let there = leases.get_opt(LEASE).await;
            let mut lease =
                json!({"metadata": {"name": LEASE, "namespace": NAMESPACE}, "spec": spec});
            // What goes wrong once, the next round puts right.
            if let Ok(Some(seen)) = &there {
                lease["metadata"]["resourceVersion"] = json!(seen.metadata.resource_version);
            }
            if let Ok(lease) = serde_json::from_value(lease) {
                let _written = match there {
                    Ok(Some(_)) => leases.replace(LEASE, &params, &lease).await,
                    _ => leases.create(&params, &lease).await,
                };
            }
        }
        let pause = tokio::time::sleep(Duration::from_millis(500));
        tokio::select! {
            () = pause => {}
            changed = holder.changed() => if changed.is_err() { return },
        }
    }
}
