//! Requests and answers of etcd's JSON gateway (etcd's `rpc.proto`, in protobuf's JSON mapping: bytes in base64, 64-bit integers as strings, zeros left out).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};

/// Bytes as JSON has them.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Bytes that came in JSON; none: they are not base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

fn integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }
    match Either::deserialize(deserializer)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

/// `RangeRequest`
#[derive(Clone, Debug, Default, Serialize)]
pub struct Range {
    pub key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_end: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks like that")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// `RangeResponse`
#[derive(Debug, Default, Deserialize)]
pub struct Ranged {
    #[serde(default)]
    pub kvs: Vec<KeyValue>,
}

/// `KeyValue`
#[derive(Debug, Default, Deserialize)]
pub struct KeyValue {
    #[serde(default)]
    pub key: String,
    #[serde(default)]
    pub value: String,
    #[serde(default, deserialize_with = "integer")]
    pub create_revision: i64,
    #[serde(default, deserialize_with = "integer")]
    pub lease: i64,
}

/// `RequestOp`
#[derive(Clone, Debug, Serialize)]
pub enum Operation {
    #[serde(rename = "request_put")]
    Put {
        key: String,
        value: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        lease: String,
    },
    #[serde(rename = "request_range")]
    Range(Range),
    #[serde(rename = "request_delete_range")]
    Delete { key: String, range_end: String },
}

/// `Compare`: that a key was created at this revision. Zero: that it does not exist.
#[derive(Debug, Serialize)]
pub struct CreatedAt {
    key: String,
    create_revision: String,
    target: &'static str,
    result: &'static str,
}

impl CreatedAt {
    pub fn new(key: String, revision: i64) -> Self {
        Self { key, create_revision: revision.to_string(), target: "CREATE", result: "EQUAL" }
    }
}

/// `TxnRequest`
#[derive(Debug, Serialize)]
pub struct Transaction {
    pub compare: [CreatedAt; 1],
    pub success: Vec<Operation>,
    pub failure: Vec<Operation>,
}

/// `TxnResponse`
#[derive(Debug, Deserialize)]
pub struct Transacted {
    #[serde(default)]
    pub header: Header,
    #[serde(default)]
    pub succeeded: bool,
    #[serde(default)]
    pub responses: Vec<Response>,
}

/// `ResponseHeader`
#[derive(Debug, Default, Deserialize)]
pub struct Header {
    #[serde(default, deserialize_with = "integer")]
    pub revision: i64,
}

/// `ResponseOp`, of which only reading is looked at.
#[derive(Debug, Deserialize)]
pub struct Response {
    #[serde(default)]
    pub response_range: Option<Ranged>,
}

/// `LeaseGrantRequest`
#[derive(Debug, Serialize)]
pub struct Grant {
    #[serde(rename = "TTL")]
    pub ttl_s: String,
}

/// `LeaseGrantResponse`, and the content of `LeaseKeepAliveResponse`.
#[derive(Debug, Default, Deserialize)]
pub struct Granted {
    #[serde(rename = "ID", default, deserialize_with = "integer")]
    pub lease: i64,
    /// Zero: there is no such lease any more.
    #[serde(rename = "TTL", default, deserialize_with = "integer")]
    pub ttl_s: i64,
}

/// `LeaseKeepAliveRequest`, `LeaseRevokeRequest`
#[derive(Debug, Serialize)]
pub struct OfLease {
    #[serde(rename = "ID")]
    pub lease: String,
}

/// One answer of a stream.
#[derive(Debug, Deserialize)]
pub struct Streamed<T> {
    pub result: T,
}

/// `AuthenticateRequest`
#[derive(Serialize)]
pub struct Authenticate<'a> {
    pub name: &'a str,
    pub password: &'a str,
}

/// `AuthenticateResponse`
#[derive(Deserialize)]
pub struct Authenticated {
    #[serde(default)]
    pub token: String,
}

/// Any answer of which nothing is looked at.
#[derive(Debug, Deserialize)]
pub struct Done {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_written_as_etcd_reads_it() {
        let put = Operation::Put { key: encode("k"), value: encode("v"), lease: "7".to_owned() };
        let read = Operation::Range(Range { key: encode("k"), ..Range::default() });
        let transaction = Transaction {
            compare: [CreatedAt::new(encode("l"), 12)],
            success: vec![put],
            failure: vec![read],
        };
        let expected = serde_json::json!({
            "compare": [{"key": "bA==", "create_revision": "12", "target": "CREATE", "result": "EQUAL"}],
            "success": [{"request_put": {"key": "aw==", "value": "dg==", "lease": "7"}}],
            "failure": [{"request_range": {"key": "aw=="}}],
        });
        assert_eq!(serde_json::to_value(transaction).unwrap(), expected);
    }

    #[test]
    fn answers_leave_zeros_out_and_write_numbers_as_text() {
        let answer = r#"{"header":{"cluster_id":"1","revision":"34"},"responses":[{"response_range":{"header":{},"kvs":[
            {"key":"bA==","create_revision":"30","mod_revision":"30","version":"1","value":"dg==","lease":"-9"}],"count":"1"}}]}"#;
        let answer: Transacted = serde_json::from_str(answer).unwrap();
        let found = &answer.responses[0].response_range.as_ref().unwrap().kvs[0];
        assert_eq!((answer.succeeded, answer.header.revision), (false, 34));
        assert_eq!((found.create_revision, found.lease), (30, -9));
        let gone: Streamed<Granted> = serde_json::from_str(r#"{"result":{"header":{},"ID":"5"}}"#).unwrap();
        assert_eq!((gone.result.lease, gone.result.ttl_s), (5, 0));
    }
}
