use super::*;

/// Adds a label where it is asked at `/label`, and refuses what has the label `bad` elsewhere.
struct Webhooks;

impl Admission for Webhooks {
    fn call(&self, call: WebhookCall) -> BoxFuture<'static, Result<(StatusCode, Vec<u8>), String>> {
        async move {
            if call.path == "/hang" {
                return futures::future::pending().await;
            }
            let review: Value = serde_json::from_slice(&call.body).unwrap();
            let uid = &review["request"]["uid"];
            let response = if call.path == "/label" {
                // [{"op":"add","path":"/metadata/labels","value":{"l":"1"}}]
                let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscyIsInZhbHVlIjp7ImwiOiIxIn19XQ==";
                json!({"uid": uid, "allowed": true, "patch": patch, "patchType": "JSONPatch"})
            } else {
                let labels = &review["request"]["object"]["metadata"]["labels"];
                let is_bad = labels.get("bad").is_some();
                json!({"uid": uid, "allowed": !is_bad, "status": {"message": "it is bad"}})
            };
            let body = json!({"response": response}).to_string().into_bytes();
            Ok((StatusCode::OK, body))
        }
        .boxed()
    }

    fn evaluate(&self, expression: &str, variables: &Variables) -> Result<bool, String> {
        match expression {
            "has no data" => Ok(variables.object.get("data").is_none()),
            _ => Err("unknown".to_owned()),
        }
    }
}

async fn bed_with(kind: &str, webhook: Value) -> Bed {
    let bed = Bed::raise().await;
    bed.server.set_webhooks(Arc::new(Webhooks));
    let mut entry = json!({
        "name": "w.example.com", "timeoutSeconds": 1, "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
    });
    for (key, value) in webhook.as_object().unwrap() {
        entry[key] = value.clone();
    }
    let plural = format!("{}s", kind.to_lowercase());
    let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
    let (code, made) = bed
        .post(
            &path,
            &json!({"metadata": {"name": "w"}, "webhooks": [entry]}),
        )
        .await;
    assert_eq!(code, 201, "{made}");
    bed
}

const MUTATING: &str = "MutatingWebhookConfiguration";
const VALIDATING: &str = "ValidatingWebhookConfiguration";

fn at(path: &str) -> Value {
    json!({"service": {"name": "s", "namespace": "n", "path": path}})
}

#[tokio::test]
async fn a_mutating_webhook_changes_what_it_is_called_for() {
    let bed = bed_with(MUTATING, json!({"clientConfig": at("/label"), "matchConditions": [{"name": "m", "expression": "has no data"}]})).await;
    let (_, labelled) = bed.post(MAPS, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(labelled["metadata"]["labels"], json!({"l": "1"}));
    let other = bed.make_map("b", json!({"x": "1"})).await;
    assert_eq!(other["metadata"].get("labels"), None);
}

#[tokio::test]
async fn a_validating_webhook_refuses_with_its_words() {
    let bed = bed_with(VALIDATING, json!({})).await;
    let bad = json!({"metadata": {"name": "a", "labels": {"bad": ""}}});
    let (code, refused) = bed.post(MAPS, &bad).await;
    let message = "admission webhook \"w.example.com\" denied the request: it is bad";
    assert_eq!((code, refused["message"].as_str()), (403, Some(message)));
    bed.make_map("b", json!({})).await;
    let selected = json!({"objectSelector": {"matchLabels": {"judged": "yes"}}});
    let bed = bed_with(VALIDATING, selected).await;
    assert_eq!(bed.post(MAPS, &bad).await.0, 201);
}

#[rstest::rstest]
#[case::ignored("Ignore", 201)]
#[case::fatal("Fail", 500)]
#[tokio::test(start_paused = true)]
async fn a_webhook_that_does_not_answer_counts_as_its_policy_says(
    #[case] policy: &str,
    #[case] code: u16,
) {
    let bed = bed_with(
        MUTATING,
        json!({"clientConfig": at("/hang"), "failurePolicy": policy}),
    )
    .await;
    assert_eq!(
        bed.post(MAPS, &json!({"metadata": {"name": "a"}})).await.0,
        code
    );
}
