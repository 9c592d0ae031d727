//! The gRPC side: `grpc.health.v1.Health/Check`. Two messages with one field each need no code
//! generator.

use std::io::Cursor;
use std::sync::Arc;

use h2::server::SendResponse;
use h2::{RecvStream, server};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::{TcpListener, TcpStream};

use crate::Failure;
use crate::state::{Health, State};

type Body = Cursor<Vec<u8>>;

const CHECK: &str = "/grpc.health.v1.Health/Check";
const NOT_FOUND: u8 = 5;
const UNIMPLEMENTED: u8 = 12;

/// Serves for ever.
pub(crate) async fn serve(listener: TcpListener, state: Arc<State>) -> Result<(), Failure> {
    loop {
        let (peer, _) = listener.accept().await?;
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            // A peer that speaks something else, or goes away, is no failure of ours.
            let _ = converse(peer, state).await;
        });
    }
}

async fn converse(peer: TcpStream, state: Arc<State>) -> Result<(), h2::Error> {
    let mut connection = server::Builder::new().handshake::<_, Body>(peer).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let _ = answer(request, respond, &state).await;
        });
    }
    Ok(())
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Body>,
    state: &State,
) -> Result<(), h2::Error> {
    if request.uri().path() != CHECK {
        return refuse(&mut respond, UNIMPLEMENTED);
    }
    let service = service_name(&read(request.into_body()).await?);
    state.count_grpc(&service);
    let health = state
        .answers()
        .grpc
        .get(&service)
        .copied()
        .unwrap_or(Health::ServiceUnknown);
    let status = match health {
        Health::Unknown => 0,
        Health::Serving => 1,
        Health::NotServing => 2,
        Health::ServiceUnknown => return refuse(&mut respond, NOT_FOUND),
        Health::Unimplemented => return refuse(&mut respond, UNIMPLEMENTED),
        Health::Hang => std::future::pending().await,
    };
    let mut stream = respond.send_response(head(), false)?;
    // Not compressed, two bytes: field 1 as a number.
    stream.send_data(Cursor::new(vec![0, 0, 0, 0, 2, 0x08, status]), false)?;
    stream.send_trailers(trailers(0))
}

async fn read(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// Field 1 of the message in a frame: five bytes of frame head, tag, length, text.
fn service_name(frame: &[u8]) -> String {
    match frame.get(5..) {
        Some([0x0a, length, text @ ..]) if *length < 0x80 => {
            String::from_utf8_lossy(text.get(..usize::from(*length)).unwrap_or_default())
                .into_owned()
        }
        _ => String::new(),
    }
}

fn refuse(respond: &mut SendResponse<Body>, code: u8) -> Result<(), h2::Error> {
    let mut response = head();
    response.headers_mut().extend(trailers(code));
    respond.send_response(response, true)?;
    Ok(())
}

fn head() -> Response<()> {
    let mut response = Response::new(());
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

fn trailers(code: u8) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    trailers
}
