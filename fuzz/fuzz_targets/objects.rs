//! Objects as the API server sends them, of any kind that is watched: what is written of one is read as the same, and so is a
//! probe that was passed on, and the revision of a set.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leadsman_api::slim::Pod;
use leadsman_api::{
    AdvancedCronJob, BroadcastJob, CloneSet, Guarded, NodePodProbe, PodProbeMarker, SidecarSet,
};
use leadsman_core::cloneset::{ClonePod, PodSet};
use leadsman_core::cluster::{Interners, Now};
use leadsman_core::podprobe::node::{ExecLimits, HistoryLimits, NodeEvent, NodeProbes};
use leadsman_core::podprobe::pod::IndexedPod;
use leadsman_core::podprobe::wire::{from_wire, to_wire};
use leadsman_core::podprobe::{Compatibility, Marker};
use leadsman_core::sidecarset::template::Template;
use leadsman_core::{broadcast, cron, podprobe, sidecarset};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn read<K: DeserializeOwned + kube::Resource>(text: &str) -> Option<K> {
    match Guarded::parse(text) {
        Ok(Guarded::Decoded(object)) => Some(*object),
        Ok(Guarded::Undecodable { .. }) | Err(_) => None,
    }
}

fn read_and_write<K: DeserializeOwned + Serialize + kube::Resource>(text: &str) -> Option<K> {
    let object: K = read(text)?;
    let write = |object: &K| serde_json::to_string(object).expect("an object is written");
    let written = write(&object);
    assert_eq!(read(&written).as_ref().map(write), Some(written));
    Some(object)
}

fn follow_plan(object: &NodePodProbe) {
    let now = Now {
        monotonic: Duration::ZERO,
        wall: Timestamp::UNIX_EPOCH,
    };
    let limits = ExecLimits {
        per_node: 8,
        per_pod: 2,
        per_slot: 4,
    };
    let mut node = NodeProbes::new(limits, HistoryLimits::NONE, now);
    let _ = node.apply_event(NodeEvent::Plan(Some(object)), now);
    for entry in object.spec.pod_probes.iter().flat_map(|pod| &pod.probes) {
        if let Ok(probe) = from_wire(&entry.probe, entry.file.as_ref()) {
            let (wire, file) = to_wire(&probe);
            assert_eq!(from_wire(&wire, file.as_ref()), Ok(probe));
        }
    }
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Some(pod) = read::<Pod>(text) {
        let interners = &mut Interners::default();
        let indexed = IndexedPod::new(&pod, None, interners);
        assert_eq!(IndexedPod::new(&pod, Some(&indexed), interners), indexed);
        let _ = podprobe::exclusive::read_records(&indexed);
        let _ = ClonePod::read(&pod, interners);
    }
    if let Some(object) = read_and_write::<NodePodProbe>(text) {
        follow_plan(&object);
    }
    if let Some(marker) = read_and_write::<PodProbeMarker>(text) {
        let _ = Marker::parse(&marker, Compatibility::Kubernetes);
    }
    if let Some(set) = read_and_write::<SidecarSet>(text)
        && let Ok(set) = sidecarset::set::SidecarSet::parse(&set)
    {
        let data = serde_json::from_str(&set.template.revision_data()).expect("a revision is JSON");
        let recorded = Template::of_revision(&data).map(|template| template.hashes());
        assert_eq!(recorded, Some(set.hashes));
    }
    if let Some(set) = read_and_write::<CloneSet>(text) {
        let _ = PodSet::read(&set);
    }
    if let Some(job) = read_and_write::<BroadcastJob>(text) {
        let _ = broadcast::Job::read(&job);
    }
    if let Some(job) = read_and_write::<AdvancedCronJob>(text) {
        let _ = cron::cron_job::CronJob::read(&Arc::new(job), &TimeZone::UTC);
    }
});
