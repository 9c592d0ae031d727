//! The rights of leadsman's accounts and of the people beside them: all that are granted suffice, each is needed, and a
//! process that lacks one names it. What `docs/security.md` says of them is what is tested here.

mod account;
mod clone_set_occasion;
mod document;
mod job_occasion;
mod occasion;
mod own_objects;
mod people;
mod pods;
mod set_occasion;
mod started;
mod table;
mod token;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use leadsman_api::NodePodProbe;
use leadsman_cri::fake::Fake;
use leadsman_testkit::audit::Mark;
use leadsman_testkit::leadsman;
use leadsman_tests::{Scene, wait_for_answer, wait_for_deletion, wait_for_object};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

pub(crate) use self::document::the_table_is_complete_and_documented;
pub(crate) use self::people::people_have_rights_on_markers_by_their_roles;
pub(crate) use self::pods::client_of;
pub(crate) use self::started::Started;

use self::account::{User, user, wait_until_granted};
use self::occasion::{Occasion, Occasions, POD};
use self::table::{AGENT, Given, Grant, MANAGER, NamedIn, TABLE, printed, table};
use crate::Installation;
use crate::broadcast::serve_jobs;
use crate::fake_runtime::{NODE, PROBED, commands_exit_with, probed_pod};
use crate::marks::{idle, marked};
use crate::stage::PLACES;

// PRB-25
pub(crate) async fn an_agents_token_reaches_one_node(
    installation: Arc<Installation>,
) -> Result<()> {
    token::check_stolen_token(&installation).await
}

/// With the rights that the gate of `SidecarSet` adds.
// SCS-53
pub(crate) async fn the_manager_changes_of_pods_what_sets_ask_for(
    installation: Arc<Installation>,
) -> Result<()> {
    pods::check_patches_of_pods(&installation).await
}

/// With the rights that the gate of `SidecarSet` adds.
// SCS-80
pub(crate) async fn the_manager_writes_of_its_own_objects_what_is_its_own(
    installation: Arc<Installation>,
) -> Result<()> {
    own_objects::check_writes_of_own_objects(&installation).await
}

// PRB-25
pub(crate) async fn all_suffice_and_each_is_needed(_: Arc<Installation>) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let bench = Bench::raise().await?;
    let begun = Instant::now();
    let outcome = async {
        bench.all_suffice().await.context("with all rights")?;
        eprintln!("with all rights: {:.1?}", begun.elapsed());
        bench.agents_without_a_right().await?;
        eprintln!("agents without a right: {:.1?}", begun.elapsed());
        bench.managers_that_cannot_begin().await?;
        eprintln!("managers that cannot begin: {:.1?}", begun.elapsed());
        bench.managers_that_cannot_act().await?;
        eprintln!("managers that cannot act: {:.1?}", begun.elapsed());
        Ok(())
    }
    .await;
    bench.installation.end().await;
    outcome
}

/// A control plane with leadsman's manifests and something to do; no manager runs.
struct Bench {
    installation: Installation,
    client: Client,
    occasions: Occasions,
    runtime: Fake,
    /// In the order of [`Given`].
    granted: Vec<Vec<Grant>>,
}

/// A right that is taken away, and when it is missed.
struct Missing {
    grant: Grant,
    occasion: Occasion,
    given: Given,
    named_in: NamedIn,
}

impl Missing {
    /// All rights of an account, one by one.
    fn of(account: &str) -> Vec<Self> {
        let rows = TABLE.iter().filter(|row| row.account == account);
        let missing = rows.flat_map(|row| {
            let grants = row.grants().into_iter();
            grants.map(|(grant, occasion)| Self {
                grant,
                occasion,
                given: row.given,
                named_in: row.named_in,
            })
        });
        missing.collect()
    }

    fn is_apply_that_creates(&self) -> bool {
        self.occasion == Occasion::NoConfiguration && self.grant.verb == "create"
    }

    /// What a user who lacks it is called.
    fn user(&self) -> String {
        let Grant {
            verb,
            resource,
            name,
            ..
        } = &self.grant;
        let when = format!("{:?} {:?}", self.given, self.occasion).to_lowercase();
        let account = &self.grant.account;
        let words = format!("{account} without {verb} {resource} {name} {when}");
        words.replace(['/', ' ', '.'], "-").replace("--", "-")
    }
}

impl Bench {
    async fn raise() -> Result<Self> {
        let installation = Installation::raise_idle().await?;
        installation.grant_webhooks().await?;
        installation.install_sidecar_set_crd().await?;
        let client = installation.client.clone();
        serve_jobs(&client).await?;
        Ok(Self {
            occasions: Occasions::new(&client).await?,
            runtime: Fake::start(),
            granted: try_join_all(Given::ALL.map(printed)).await?,
            client,
            installation,
        })
    }

    /// A user with all rights of the account but this one, and what else is to be kept from it.
    async fn user_without(&self, missing: &Missing, also: &[Grant]) -> Result<User> {
        let granted = &self.granted[missing.given as usize];
        let of_account = granted
            .iter()
            .filter(|grant| grant.account == missing.grant.account);
        let of_account: Vec<_> = of_account.cloned().collect();
        let lacks = [std::slice::from_ref(&missing.grant), also].concat();
        let plane = &self.installation.plane;
        user(plane, &self.client, &missing.user(), &of_account, &lacks).await
    }

    /// Waits until the rights of the manifests are in force.
    async fn wait_until_in_force(&self, gates: Given) -> Result<()> {
        for (account, user) in [(MANAGER, leadsman::MANAGER), (AGENT, leadsman::AGENT)] {
            let granted = &self.granted[gates as usize];
            for grant in granted.iter().filter(|grant| grant.account == account) {
                wait_until_granted(&self.client, user, grant).await?;
            }
        }
        Ok(())
    }

    /// A manager and an agent with the accounts and rights of the manifests, and what each of them is for.
    async fn all_suffice(&self) -> Result<()> {
        let plane = &self.installation.plane;
        self.wait_until_in_force(Given::WithWebhooks).await?;
        let start = plane.audit_mark()?;
        let scene = probed_pod(&self.client, &self.runtime).await?;
        let token =
            |account, pod| plane.service_account_kubeconfig(leadsman::NAMESPACE, account, pod);
        agent_pod(&self.client, "agent", NODE).await?;
        let (manager_token, agent_token) = (
            token(MANAGER, None).await?,
            token(AGENT, Some("agent")).await?,
        );
        for occasion in [
            Occasion::NewNode,
            Occasion::OldNode,
            Occasion::NewMarker,
            Occasion::DeletedMarker,
        ] {
            drop(self.occasions.arrange(occasion).await?);
        }
        let gates = Given::WithWebhooks;
        let manager = Started::manager(plane, "all-manager", &manager_token, gates, true).await?;
        let socket = self.runtime.socket_path();
        let agent = Started::agent(plane, "all-agent", &agent_token, NODE, &socket).await?;
        for exit_code in [0, 1, 0, 1] {
            commands_exit_with(&self.runtime, exit_code);
            let state = if exit_code == 0 {
                "Succeeded"
            } else {
                "Failed"
            };
            scene.wait_for_marks(PROBED.1, marked(state)).await?;
        }
        self.wait_until_done().await?;
        manager.wait_until_ready().await?;
        agent.wait_until_ready().await?;
        self.webhooks_come_and_go(&scene).await?;
        agent.end().await?;
        manager.end().await?;
        self.a_leftover_goes(&manager_token).await?;
        self.used(start)
    }

    /// Waits until what was arranged has been dealt with.
    async fn wait_until_done(&self) -> Result<()> {
        let scene = &self.occasions.scene;
        scene.wait_for_entries(&[&format!("{POD}/m#Idle")]).await?;
        scene.report_verdict(POD, "m#Idle", "Succeeded").await?;
        scene.wait_for_marks(POD, marked("Succeeded")).await?;
        scene.wait_for_reason("m", "Probing").await?;
        wait_for_answer("new nodes have objects and old ones have none", || async {
            let objects = scene
                .probes()
                .list(&kube::api::ListParams::default())
                .await?;
            let names: Vec<_> = objects
                .iter()
                .filter_map(|object| object.metadata.name.as_deref())
                .collect();
            let begins = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
            Ok((begins("new-") && !begins("old-")).then_some(()))
        })
        .await?;
        wait_for_answer("no marker is being deleted", || async {
            let markers = scene
                .markers()
                .list(&kube::api::ListParams::default())
                .await?;
            let mut markers = markers.iter();
            let deleted = markers.any(|marker| marker.metadata.deletion_timestamp.is_some());
            Ok((!deleted).then_some(()))
        })
        .await
    }

    /// The webhook configuration and its Secret are made and mended; without markers the configuration goes.
    async fn webhooks_come_and_go(&self, probed: &Scene) -> Result<()> {
        let configurations = self.occasions.configurations();
        wait_for_object(
            &configurations,
            leadsman_admission::CONFIGURATION,
            "a webhook",
            |found| {
                ensure!(found.webhooks.iter().flatten().count() == 1, "{found:?}");
                Ok(())
            },
        )
        .await?;
        self.occasions.spoilt_secret().await?;
        let secrets: Api<k8s_openapi::api::core::v1::Secret> =
            Api::namespaced(self.client.clone(), leadsman::NAMESPACE);
        wait_for_object(
            &secrets,
            leadsman_admission::SECRET,
            "a certificate",
            |secret| {
                let data = secret.data.as_ref().and_then(|data| data.get("tls.crt"));
                let certificate = data.is_some_and(|data| data.0.starts_with(b"-----BEGIN"));
                ensure!(certificate, "it holds none");
                Ok(())
            },
        )
        .await?;
        for scene in [probed, &self.occasions.scene] {
            scene
                .markers()
                .delete_collection(&DeleteParams::default(), &kube::api::ListParams::default())
                .await?;
        }
        wait_for_deletion(&configurations, leadsman_admission::CONFIGURATION).await?;
        self.occasions.scene.marker("m", idle()).await?;
        Ok(())
    }

    /// A manager without the gate, and with the rights that go with that, deletes what one with it has left.
    async fn a_leftover_goes(&self, kubeconfig: &std::path::Path) -> Result<()> {
        let plane = &self.installation.plane;
        let installed = Command::new(leadsman::program()?)
            .arg("manifests")
            .output()
            .await?;
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        plane.kubectl_with(&apply, &installed.stdout).await?;
        drop(self.occasions.arrange(Occasion::Leftover).await?);
        let (name, gates) = ("all-manager-gate-off", Given::Always);
        let manager = Started::manager(plane, name, kubeconfig, gates, false).await?;
        let configurations = self.occasions.configurations();
        wait_for_deletion(&configurations, leadsman_admission::CONFIGURATION).await?;
        // The marker that was made anew.
        self.occasions
            .scene
            .wait_for_entries(&[&format!("{POD}/m#Idle")])
            .await?;
        manager.end().await
    }

    /// Fails unless nothing was denied to the accounts, and they have used every right that does not depend on a race.
    fn used(&self, since: Mark) -> Result<()> {
        let requests = self.installation.plane.audit(since)?;
        let mut unused: BTreeSet<Grant> = table(Given::WithWebhooks).into_iter().collect();
        for request in &requests {
            let account = match request.user.as_str() {
                leadsman::MANAGER => MANAGER,
                leadsman::AGENT => AGENT,
                _ => continue,
            };
            ensure!(request.code != 403, "it was denied: {request:?}");
            let mut resource = request.resource.clone();
            if !request.subresource.is_empty() {
                resource = format!("{resource}/{}", request.subresource);
            }
            unused.retain(|grant| {
                // An apply of what does not exist asks for both.
                let creates =
                    grant.verb == "create" && request.verb == "patch" && request.code == 201;
                let is_used = grant.account == account
                    && (grant.verb == request.verb || creates)
                    && grant.resource == resource
                    && (grant.name.is_empty() || grant.name == request.name);
                !is_used
            });
        }
        // OpenKruise is not installed here.
        let by_chance = |grant: &Grant| {
            let resources = ["leases", "nodepodprobes", "clusterrolebindings"];
            grant.verb == "get" && resources.contains(&grant.resource.as_str())
        };
        unused.retain(|grant| !by_chance(grant));
        ensure!(unused.is_empty(), "nobody has used {unused:#?}");
        Ok(())
    }

    /// Each agent lacks one right. No manager runs, and each has a node of its own.
    async fn agents_without_a_right(&self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), PROBED.0);
        let uid = pods.get(PROBED.1).await?.metadata.uid;
        let flips = async {
            for exit_code in [0, 1].into_iter().cycle() {
                commands_exit_with(&self.runtime, exit_code);
                // Longer than the probe's period.
                tokio::time::sleep(Duration::from_millis(1300)).await;
            }
        };
        let missing = Missing::of(AGENT);
        let agents = missing
            .iter()
            .map(|missing| self.agent_without(missing, uid.as_deref()));
        tokio::select! {
            () = flips => unreachable!("it goes on for ever"),
            outcome = try_join_all(agents) => outcome.map(drop),
        }
    }

    async fn agent_without(&self, missing: &Missing, uid: Option<&str>) -> Result<()> {
        let user = self.user_without(missing, &[]).await?;
        let plan = json!({"metadata": {"name": user.name}, "spec": {"podProbes": [
            {"name": PROBED.1, "namespace": PROBED.0, "uid": uid, "IP": "10.1.2.3", "probes": [
                {"name": "m#p", "containerName": "main", "probe": {"exec": {"command": ["true"]},
                    "periodSeconds": 1, "successThreshold": 1, "failureThreshold": 1}}]}]}});
        let objects: Api<NodePodProbe> = Api::all(self.client.clone());
        let plan = serde_json::from_value(plan)?;
        objects.create(&PostParams::default(), &plan).await?;
        let plane = &self.installation.plane;
        let socket = self.runtime.socket_path();
        let agent =
            Started::agent(plane, &user.name, &user.kubeconfig, &user.name, &socket).await?;
        agent
            .wait_for_missing_right(&user.name, &missing.grant, missing.named_in)
            .await?;
        agent.end().await?;
        objects.delete(&user.name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Each manager lacks one right that every start uses, so they run side by side.
    async fn managers_that_cannot_begin(&self) -> Result<()> {
        let missing = Missing::of(MANAGER);
        let at_start = missing
            .iter()
            .filter(|missing| missing.occasion == Occasion::Start);
        let managers = at_start.map(|missing| async move {
            let user = self.user_without(missing, &[]).await?;
            let manager = self.start(&user, missing).await?;
            manager
                .wait_for_missing_right(&user.name, &missing.grant, missing.named_in)
                .await?;
            Ok::<_, anyhow::Error>(manager)
        });
        let managers = try_join_all(managers).await?;
        try_join_all(managers.into_iter().map(Started::end)).await?;
        Ok(())
    }

    /// Each manager lacks one right that a leader uses, so they run one after another.
    async fn managers_that_cannot_act(&self) -> Result<()> {
        let missing = Missing::of(MANAGER).into_iter();
        let minor = self.client.apiserver_version().await?.minor;
        // That of 1.31 calls an apply that creates forbidden, and says no right (docs/reference/platforms.md).
        let is_silent = minor == "31";
        let untried = [Occasion::Start, Occasion::Race];
        for missing in missing.filter(|missing| !untried.contains(&missing.occasion)) {
            if is_silent && missing.is_apply_that_creates() {
                eprintln!(
                    "{}: left out, this API server says no right",
                    missing.user()
                );
                continue;
            }
            let begun = Instant::now();
            self.manager_without(&missing)
                .await
                .with_context(|| missing.user())?;
            eprintln!("{}: {:.1?}", missing.user(), begun.elapsed());
        }
        Ok(())
    }

    async fn manager_without(&self, missing: &Missing) -> Result<()> {
        let occasion = missing.occasion;
        let watch = Grant {
            verb: "watch".to_owned(),
            ..missing.grant.clone()
        };
        // A watch would show the object before it is in the way.
        let also: &[Grant] = match occasion {
            Occasion::ObjectInTheWay | Occasion::RevisionInTheWay => &[watch],
            _ => &[],
        };
        let user = self.user_without(missing, also).await?;
        let meanwhile = self.occasions.arrange(occasion).await?;
        let manager = self.start(&user, missing).await?;
        if !also.is_empty() {
            manager.wait_for_log("writes begin").await?;
        }
        let missed = manager.wait_for_missing_right(&user.name, &missing.grant, missing.named_in);
        tokio::select! {
            missed = missed => missed?,
            acted = self.act_again_and_again(occasion) => acted?,
        }
        drop(meanwhile);
        manager.end().await
    }

    /// A list in place of the watch may show an object before it is in the way, and not the next one too.
    async fn act_again_and_again(&self, occasion: Occasion) -> Result<()> {
        let mut turns = tokio::time::interval(Duration::from_secs(5));
        loop {
            turns.tick().await;
            self.occasions.act(occasion).await?;
        }
    }

    async fn start(&self, user: &User, missing: &Missing) -> Result<Started> {
        let plane = &self.installation.plane;
        let serves = missing.occasion != Occasion::NoServer;
        Started::manager(plane, &user.name, &user.kubeconfig, missing.given, serves).await
    }
}

/// A pod in the place of a DaemonSet's, which a token can be bound to.
async fn agent_pod(client: &Client, name: &str, node: &str) -> Result<()> {
    let pod: Value = json!({"metadata": {"name": name}, "spec": {"serviceAccountName": AGENT, "nodeName": node,
        "containers": [{"name": "agent", "image": "none"}]}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), leadsman::NAMESPACE);
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    Ok(())
}
