//! The body that an API server, or whoever reaches the port, posts to the webhook of SidecarSets: an answer has the uid of its
//! request and allows it, and a pod that was just injected gets nothing more.
#![no_main]

use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use leadsman_admission::{
    AdmissionRequest, Mutation, PatchOperation, Reviewer, Webhook, WebhookCalls, WebhookFeed,
};
use leadsman_core::sidecarset::annotations::IN_PLACE_STATE;
use leadsman_core::sidecarset::samples::{fullest, smallest};
use leadsman_core::sidecarset::selection::SetHistory;
use leadsman_core::sidecarset::set::SidecarSet;
use leadsman_core::sidecarset::snapshot::{Snapshot, SnapshotSet, SnapshotVersion};
use leadsman_core::workload::JsonObject;
use serde_json::Value;

struct Injector;

impl Reviewer for Injector {
    type Object = JsonObject;
    type Snapshot = Snapshot;
    type Response = Mutation;

    fn review_request(known: &Snapshot, request: &AdmissionRequest<JsonObject>) -> Mutation {
        let AdmissionRequest {
            object, namespace, ..
        } = request;
        let inject = |pod| {
            known
                .inject(pod, namespace, Timestamp::UNIX_EPOCH)
                .additions
        };
        let additions = inject(object);
        let more = inject(&additions.apply(object));
        let is_upgraded = object
            .get("metadata")
            .is_some_and(|it| !it["annotations"][IN_PLACE_STATE].is_null());
        assert!(more.is_empty() || is_upgraded, "{more:?}");
        let patch = additions.json_patch(object).into_iter();
        Mutation {
            patch: patch.map(PatchOperation::from).collect(),
            ..Mutation::default()
        }
    }
}

static WEBHOOK: LazyLock<Webhook> = LazyLock::new(|| {
    let known = [smallest(), fullest()].map(|set| {
        let wire = serde_json::from_value(set).expect("a sample is a set");
        let set = SidecarSet::parse(&wire).expect("these samples are valid");
        SnapshotSet {
            history: Arc::new(SetHistory::new(&set, Vec::new(), None)),
            set: Arc::new(set),
            needs: SnapshotVersion::default(),
        }
    });
    let labels = [("team.example/name".into(), "x".into())]
        .into_iter()
        .collect();
    let snapshot = Snapshot {
        sets: Arc::new(known.into()),
        namespaces: Arc::new([("shop".into(), labels)].into()),
        allows_unlisted_metadata: true,
        ..Snapshot::default()
    };
    let feed = WebhookFeed::new();
    feed.publish_snapshot(WebhookCalls::default(), Arc::new(snapshot));
    feed.fed_webhook::<Injector>("sidecarset.leadsman.io")
});

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    let Some(answer) = WEBHOOK.answer_body(body) else {
        return;
    };
    let answer: Value = serde_json::from_slice(&answer).expect("an answer is JSON");
    let response = &answer["response"];
    if let Ok(review) = serde_json::from_slice::<Value>(body) {
        assert_eq!(response["uid"], review["request"]["uid"]);
    }
    assert_eq!(response["allowed"], true);
    assert_eq!(
        response["patch"].is_string(),
        response["patchType"] == "JSONPatch"
    );
});
