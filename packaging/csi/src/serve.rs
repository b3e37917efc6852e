//! gRPC: which path is which method.

use crate::driver::Driver;
use anyhow::Context;
use http::{Request, Response};
use nfsrdma_mountinfo::plain;
use std::convert::Infallible;
use std::fs;
use std::future::Future;
use std::io::{ErrorKind, Write, stderr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic_prost::ProstCodec;

/// How long calls may go on after SIGTERM.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT. Mounts stay.
pub async fn serve(driver: Driver, socket: &Path) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, mut stopped) = tokio::sync::watch::channel(());
    let listener = listen(socket).with_context(|| {
        let shown = socket.display();
        format!("the socket {shown} cannot be made: choose a directory that exists by --endpoint")
    })?;
    let methods = Methods(Arc::new(driver));
    let until = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = stop.send(());
    };
    let incoming = UnixListenerStream::new(listener);
    let serving = Server::builder().serve_with_incoming_shutdown(methods, incoming, until);
    let late = async {
        let _ = stopped.changed().await;
        tokio::time::sleep(LAST_CALLS).await;
    };
    let served = tokio::select! {
        served = serving => served.context("the socket failed"),
        () = late => Ok(()),
    };
    let _ = fs::remove_file(socket);
    served
}

/// Listens on the socket, in the place of one that a predecessor left. Only root may call.
fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    match fs::symlink_metadata(socket) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(socket)?,
        Ok(_) => return Err(ErrorKind::AlreadyExists.into()),
        Err(_) => {}
    }
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

#[derive(Clone)]
struct Methods(Arc<Driver>);

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl tower_service::Service<Request<Body>> for Methods {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let driver = Arc::clone(&self.0);
        let path = request.uri().path().to_owned();
        match path.strip_prefix("/csi.v1.").unwrap_or("") {
            "Identity/GetPluginInfo" => answer(driver, request, Driver::get_plugin_info),
            "Identity/GetPluginCapabilities" => {
                answer(driver, request, Driver::get_plugin_capabilities)
            }
            "Identity/Probe" => answer(driver, request, Driver::probe),
            "Controller/CreateVolume" => answer(driver, request, Driver::create_volume),
            "Controller/DeleteVolume" => answer(driver, request, Driver::delete_volume),
            "Controller/ValidateVolumeCapabilities" => {
                answer(driver, request, Driver::validate_volume_capabilities)
            }
            "Controller/ControllerGetCapabilities" => {
                answer(driver, request, Driver::controller_get_capabilities)
            }
            "Node/NodePublishVolume" => answer(driver, request, Driver::node_publish_volume),
            "Node/NodeUnpublishVolume" => answer(driver, request, Driver::node_unpublish_volume),
            "Node/NodeGetVolumeStats" => answer(driver, request, Driver::node_get_volume_stats),
            "Node/NodeGetCapabilities" => answer(driver, request, Driver::node_get_capabilities),
            "Node/NodeGetInfo" => answer(driver, request, Driver::node_get_info),
            _ => {
                let status = Status::unimplemented(format!("nfsrdma.csi does not have {path}"));
                Box::pin(async { Ok(status.into_http()) })
            }
        }
    }
}

type Method<Q, A> = fn(&Driver, Q) -> Result<A, Status>;

/// Decodes the request, calls the method, and encodes its answer.
fn answer<Q, A>(driver: Arc<Driver>, request: Request<Body>, method: Method<Q, A>) -> Answer
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
{
    let call = Call {
        driver,
        name: request.uri().path().to_owned(),
        method,
    };
    Box::pin(async {
        let mut grpc = Grpc::new(ProstCodec::<A, Q>::default());
        Ok(grpc.unary(call, request).await)
    })
}

struct Call<Q, A> {
    driver: Arc<Driver>,
    name: String,
    method: Method<Q, A>,
}

impl<Q: Send + 'static, A: Send + 'static> UnaryService<Q> for Call<Q, A> {
    type Response = A;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<A>, Status>> + Send>>;

    /// The method goes on to its end, even if the caller does not wait for it.
    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let (driver, method, name) = (Arc::clone(&self.driver), self.method, self.name.clone());
        let done = tokio::task::spawn_blocking(move || {
            let result = method(&driver, request.into_inner());
            if let Err(status) = &result {
                // In one piece, beside others.
                let line = format!("{name}: {}\n", plain(status.message()));
                let _ = stderr().write_all(line.as_bytes());
            }
            result
        });
        Box::pin(async {
            match done.await {
                Ok(result) => result.map(tonic::Response::new),
                Err(_) => Err(Status::internal(
                    "the driver has a fault: please report what its log says",
                )),
            }
        })
    }
}
