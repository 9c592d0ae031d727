//! Databases of two pods: clients follow the main, because the Service selects the marker's label.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, ResourceExt as _};

use super::{NAMESPACE, listed, value};
use crate::cluster::Demo;
use crate::see::{Look, labelled, see};
use crate::tell::Tell;

/// So many answers in a row must come from the new main.
const ANSWERS: usize = 5;
const PATIENCE: Duration = Duration::from_mins(1);

/// A pair of database pods, and how each gets its role.
pub(super) struct Database {
    name: &'static str,
    asked: &'static str,
    main: &'static str,
    secondary: &'static str,
}

/// Asked over HTTP.
pub(super) const HTTP: Database = Database {
    name: "database",
    asked: "httpGet /role",
    main: "role=main",
    secondary: "role=secondary",
};

/// Asked over gRPC.
pub(super) const GRPC: Database = Database {
    name: "ledger",
    asked: "grpc, service \"role\"",
    main: "grpc.role=SERVING",
    secondary: "grpc.role=NOT_SERVING",
};

impl Database {
    pub(super) async fn play(&self, cluster: &Demo, tell: &Tell) -> Result<()> {
        Tell::title(&format!(
            "A {} of two pods, asked for its role by {}",
            self.name, self.asked
        ));
        let addresses = self.addresses(cluster).await?;
        self.becomes_main(cluster, tell, &addresses, 0).await?;
        self.becomes_main(cluster, tell, &addresses, 1).await
    }

    fn pod(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    fn pods(&self, cluster: &Demo) -> (Api<Pod>, kube::runtime::watcher::Config) {
        (
            Api::namespaced(cluster.client.clone(), NAMESPACE),
            labelled(&format!("app={}", self.name)),
        )
    }

    /// The pods' own addresses, once both containers run.
    async fn addresses(&self, cluster: &Demo) -> Result<[String; 2]> {
        let (pods, choice) = self.pods(cluster);
        see(&pods, choice, |pods| {
            let ready = |pod: &Pod| super::condition(pod, "Ready") == "True";
            let address = |number| {
                let pod = pods.get(&self.pod(number)).filter(|pod| ready(pod))?;
                pod.status.as_ref()?.pod_ip.clone()
            };
            match (address(0), address(1)) {
                (Some(first), Some(second)) => Look::Seen([first, second]),
                _ => Look::NotYet(listed(pods.values(), |pod| {
                    format!("Ready {}", super::condition(pod, "Ready"))
                })),
            }
        })
        .await
    }

    /// Tells one pod that it is main and the other that it is not, and follows that to the Service's clients.
    async fn becomes_main(
        &self,
        cluster: &Demo,
        tell: &Tell,
        addresses: &[String; 2],
        main: usize,
    ) -> Result<()> {
        let (other, new) = (1 - main, self.pod(main));
        let since = tell.step(
            &format!(
                "POST /set?{} to {}, POST /set?{} to {new}, on their own ports",
                self.secondary,
                self.pod(other),
                self.main
            ),
            &format!(
                "{new} labelled role=main, {} role=secondary",
                self.pod(other)
            ),
        );
        for (address, role) in [
            (&addresses[other], self.secondary),
            (&addresses[main], self.main),
        ] {
            cluster
                .bed
                .post_from_inside(&format!("http://{address}:8080/set?{role}"))
                .await?;
        }
        self.labelled(cluster, tell, since, main).await?;
        self.answers(cluster, tell, &new).await
    }

    async fn labelled(
        &self,
        cluster: &Demo,
        tell: &Tell,
        since: Instant,
        main: usize,
    ) -> Result<()> {
        let (pods, choice) = self.pods(cluster);
        let words = see(&pods, choice, |pods| {
            let role = |number| {
                pods.get(&self.pod(number))
                    .map_or("-", |pod| value(pod.labels(), "role"))
            };
            let words = listed(pods.values(), |pod| {
                format!("role={}", value(pod.labels(), "role"))
            });
            if role(main) == "main" && role(1 - main) == "secondary" {
                Look::Seen(words)
            } else {
                Look::NotYet(words)
            }
        })
        .await?;
        tell.seen(since, &words);
        Ok(())
    }

    /// Asks the Service's cluster IP, as a client in the cluster does, until the new main alone answers.
    async fn answers(&self, cluster: &Demo, tell: &Tell, new: &str) -> Result<()> {
        let services = Api::<Service>::namespaced(cluster.client.clone(), NAMESPACE);
        let service = services.get(self.name).await?;
        let address = service
            .spec
            .and_then(|spec| spec.cluster_ip)
            .context("a Service has a cluster IP")?;
        let since = tell.step(
            &format!(
                "GET http://{address}/name, the cluster IP of Service {}",
                self.name
            ),
            &format!("answered by {new}, {ANSWERS} times in a row"),
        );
        let mut in_a_row = 0;
        while in_a_row < ANSWERS {
            let answer = cluster
                .bed
                .get_from_inside(&format!("http://{address}/name"))
                .await;
            match answer.as_deref().map(str::trim) {
                Ok(name) if name == new => in_a_row += 1,
                answer if since.elapsed() > PATIENCE => {
                    bail!("not seen in {PATIENCE:?}; the last answer was {answer:?}")
                }
                _ => {
                    in_a_row = 0;
                    // A client tries again; there is no watch on what a firewall does.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        tell.seen(since, &format!("{ANSWERS} answers, all of {new}"));
        Ok(())
    }
}
