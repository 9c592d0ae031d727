//! The messages of `opentelemetry.proto.collector.trace.v1.TraceService/Export` (opentelemetry-proto 1.x), as far as they
//! are used. Pure.

use http::uri::PathAndQuery;
use jiff::Timestamp;
use prost::{Message, Oneof};

use super::span::{Span, SpanKind};

/// The path of the call.
pub(super) const PATH: PathAndQuery =
    PathAndQuery::from_static("/opentelemetry.proto.collector.trace.v1.TraceService/Export");

/// `SPAN_KIND_INTERNAL` and `SPAN_KIND_CLIENT` of `Span.SpanKind`.
const INTERNAL: i32 = 1;
const CLIENT: i32 = 3;
/// `STATUS_CODE_ERROR` of `Status.StatusCode`.
const ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<WireResource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct WireResource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<WireSpan>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct WireSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<WireStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct WireStatus {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    String(String),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// The request that exports these spans as those of a service.
pub(super) fn export_request(service: &str, spans: &[Span]) -> ExportTraceServiceRequest {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = vec![
        to_attribute("service.name", service),
        to_attribute("service.version", version),
    ];
    let scope = InstrumentationScope {
        name: "leadsman".to_owned(),
        version: version.to_owned(),
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(WireResource { attributes }),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans: spans.iter().map(wire_span).collect(),
            }],
        }],
    }
}

fn wire_span(span: &Span) -> WireSpan {
    let began = to_unix_nanoseconds(span.began);
    let attributes = span.attributes.iter();
    WireSpan {
        trace_id: span.trace.0.to_vec(),
        span_id: span.id.0.to_vec(),
        // Empty for a root span (`trace.proto` of opentelemetry-proto).
        parent_span_id: span
            .parent
            .map_or_else(Vec::new, |parent| parent.0.to_vec()),
        name: span.name.to_owned(),
        kind: match span.kind {
            SpanKind::Internal => INTERNAL,
            SpanKind::Client => CLIENT,
        },
        start_time_unix_nano: began,
        // The time of day may have been set back meanwhile.
        end_time_unix_nano: to_unix_nanoseconds(span.ended).max(began),
        attributes: attributes
            .map(|(key, value)| to_attribute(key, value))
            .collect(),
        status: span.error.as_ref().map(|error| WireStatus {
            message: error.clone(),
            code: ERROR,
        }),
    }
}

fn to_attribute(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::String(value.to_owned())),
        }),
    }
}

fn to_unix_nanoseconds(time: Timestamp) -> u64 {
    // The wire has no times before 1970.
    u64::try_from(time.as_nanosecond()).unwrap_or_default()
}

#[cfg(any(test, feature = "fake"))]
mod collected {
    use std::collections::BTreeMap;
    use std::fmt::Write as _;

    use super::{ExportTraceServiceRequest, KeyValue, Timestamp, Value, WireSpan};
    use crate::traces::collector::CollectedSpan;

    impl ExportTraceServiceRequest {
        /// Its spans, as a collector reads them.
        pub(in crate::traces) fn collected_spans(&self) -> Vec<CollectedSpan> {
            let resources = self.resource_spans.iter();
            let spans = resources.flat_map(|resource| {
                let attributes = resource.resource.iter().flat_map(|it| &it.attributes);
                let service = attribute_map(attributes)
                    .remove("service.name")
                    .unwrap_or_default();
                let spans = resource.scope_spans.iter().flat_map(|scope| &scope.spans);
                spans.map(move |span| collected_span(span, service.clone()))
            });
            spans.collect()
        }
    }

    fn collected_span(span: &WireSpan, service: String) -> CollectedSpan {
        CollectedSpan {
            service,
            trace: to_hexadecimal(&span.trace_id),
            id: to_hexadecimal(&span.span_id),
            parent: to_hexadecimal(&span.parent_span_id),
            name: span.name.clone(),
            began: from_unix_nanoseconds(span.start_time_unix_nano),
            ended: from_unix_nanoseconds(span.end_time_unix_nano),
            attributes: attribute_map(&span.attributes),
            error: span.status.as_ref().map(|status| status.message.clone()),
        }
    }

    fn attribute_map<'a>(
        attributes: impl IntoIterator<Item = &'a KeyValue>,
    ) -> BTreeMap<String, String> {
        let pairs = attributes.into_iter().filter_map(|attribute| {
            let Value::String(value) = attribute.value.as_ref()?.value.as_ref()?;
            Some((attribute.key.clone(), value.clone()))
        });
        pairs.collect()
    }

    fn to_hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |mut digits, byte| {
            // Writing to a string does not fail.
            let _written = write!(digits, "{byte:02x}");
            digits
        })
    }

    fn from_unix_nanoseconds(nanoseconds: u64) -> Timestamp {
        Timestamp::from_nanosecond(nanoseconds.into()).expect("a time that was a Timestamp before")
    }
}
