use super::*;

/// Does to the next request, or to all events, what it is told.
#[derive(Default)]
struct Told {
    fate: Mutex<Option<RequestFate>>,
    event: Mutex<Option<EventFate>>,
    lag: AtomicU64,
    outcomes: Mutex<Vec<Answered>>,
}

impl Link for Told {
    fn fate(&self, _: &RequestFacts) -> RequestFate {
        self.fate
            .lock()
            .unwrap()
            .take()
            .unwrap_or(RequestFate::Pass)
    }

    fn answered(&self, _: &RequestFacts, outcome: &Answered) {
        self.outcomes.lock().unwrap().push(outcome.clone());
    }

    fn replica_lag(&self, _: &str) -> u64 {
        self.lag.load(Ordering::Relaxed)
    }

    fn event_fate(&self, _: &str, _: u64) -> EventFate {
        self.event.lock().unwrap().unwrap_or(EventFate::Deliver)
    }
}

impl Told {
    fn tell(&self, fate: RequestFate) {
        *self.fate.lock().unwrap() = Some(fate);
    }
}

async fn try_create(bed: &Bed, name: &str) -> Option<u16> {
    let body = json!({"metadata": {"name": name}}).to_string().into_bytes();
    let request = Request::post(MAPS)
        .header("content-type", JSON)
        .body(Body::from(body))
        .unwrap();
    let sent = tokio::time::timeout(Duration::from_secs(5), bed.client.send(request)).await;
    sent.ok()?.ok().map(|response| response.status().as_u16())
}

#[rstest::rstest]
#[case::passed(RequestFate::Pass, Some(201), true)]
#[case::late(RequestFate::Delay(Duration::from_secs(1)), Some(201), true)]
#[case::too_late_for_the_client(RequestFate::Delay(Duration::from_secs(6)), None, true)]
#[case::lost(RequestFate::LoseRequest, None, false)]
#[case::hanging(RequestFate::HangRequest, None, false)]
#[case::its_reply_is_lost(RequestFate::LoseReply, None, true)]
#[case::its_reply_hangs(RequestFate::HangReply, None, true)]
#[case::refused(
    RequestFate::Refuse(StatusCode::TOO_MANY_REQUESTS, Some(3)),
    Some(429),
    false
)]
#[case::the_client_crashes_before(RequestFate::CrashBefore, None, false)]
#[case::the_client_crashes_after(RequestFate::CrashAfter, None, true)]
#[tokio::test(start_paused = true)]
async fn a_request_meets_its_fate(
    #[case] fate: RequestFate,
    #[case] code: Option<u16>,
    #[case] done: bool,
) {
    let link = Arc::new(Told::default());
    let bed = Bed::with_link(Arc::clone(&link) as Arc<dyn Link>).await;
    link.tell(fate);
    assert_eq!(try_create(&bed, "a").await, code);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bed.server.objects("configmaps").len(), usize::from(done));
    let changed = link
        .outcomes
        .lock()
        .unwrap()
        .first()
        .and_then(|outcome| outcome.changed);
    assert_eq!(changed.is_some(), done);
    let is_gone = matches!(fate, RequestFate::CrashBefore | RequestFate::CrashAfter);
    assert_eq!(try_create(&bed, "b").await.is_none(), is_gone);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_behind_shows_what_it_has() {
    let link = Arc::new(Told::default());
    let bed = Bed::with_link(Arc::clone(&link) as Arc<dyn Link>).await;
    let made = bed.make_map("a", json!({})).await;
    bed.make_map("b", json!({})).await;
    link.lag.store(1, Ordering::Relaxed);
    let count = |list: &Value| list["items"].as_array().map(Vec::len);
    assert_eq!(
        count(&bed.get(&format!("{MAPS}?resourceVersion=0")).await.1),
        Some(1)
    );
    assert_eq!(count(&bed.get(MAPS).await.1), Some(2));
    let path = format!(
        "{MAPS}?watch=true&timeoutSeconds=2&resourceVersion={}",
        version(&made)
    );
    let (events, ()) = tokio::join!(bed.watch(&path), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(bed.server.objects("configmaps").len(), 2);
        link.lag.store(0, Ordering::Relaxed);
    });
    assert_eq!(events.len(), 1);
}

#[rstest::rstest]
#[case::delivered(EventFate::Deliver, 1)]
#[case::late(EventFate::Delay(Duration::from_secs(1)), 1)]
#[case::closed_before_it(EventFate::CloseStream, 0)]
#[case::an_error_in_its_place(EventFate::Expire, 1)]
#[tokio::test(start_paused = true)]
async fn an_event_meets_its_fate(#[case] fate: EventFate, #[case] delivered: usize) {
    let link = Arc::new(Told::default());
    let bed = Bed::with_link(Arc::clone(&link) as Arc<dyn Link>).await;
    *link.event.lock().unwrap() = Some(fate);
    let from = bed.server.version();
    bed.make_map("a", json!({})).await;
    let events = bed
        .watch(&format!(
            "{MAPS}?watch=true&timeoutSeconds=5&resourceVersion={from}"
        ))
        .await;
    assert_eq!(events.len(), delivered);
}

#[tokio::test]
async fn equal_seeds_make_equal_objects() {
    let mut made = Vec::new();
    for _ in 0..2 {
        let bed = Bed::raise().await;
        bed.post(MAPS, &json!({"metadata": {"generateName": "a-"}}))
            .await;
        made.push(bed.server.objects("configmaps"));
    }
    assert_eq!(made[0], made[1]);
}
