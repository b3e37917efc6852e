//! Strategies for values of every type. Names and data are borrowed from static memory, so the
//! values have no lifetime.

use crate::codec::{Payload, Text};
use crate::nfs3::*;
use crate::{mount3, rpc, rpcbind, rpcrdma};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::LazyJust;
use std::sync::LazyLock;

const POOL_LEN: usize = 2 * PATH_MAX;

/// Random bytes, among which every value occurs.
static POOL: LazyLock<[u8; POOL_LEN]> = LazyLock::new(|| {
    let mut pool = [0; POOL_LEN];
    fastrand::Rng::with_seed(1).fill(&mut pool);
    pool
});
/// The same bytes without those that a name must not contain.
static NAME_POOL: LazyLock<[u8; POOL_LEN]> =
    LazyLock::new(|| POOL.map(|byte| if matches!(byte, 0 | b'/') { b'n' } else { byte }));

fn slice_of(
    pool: &'static LazyLock<[u8; POOL_LEN]>,
    min: usize,
    max: usize,
) -> impl Strategy<Value = &'static [u8]> + Clone {
    // Mostly short: errors are likely with padding and empty data.
    let len = prop_oneof![8 => min..=(min + 8).min(max), 1 => min..=max, 1 => Just(max)];
    (len, 0..POOL_LEN - max).prop_map(move |(len, from)| &pool[from..from + len])
}

/// At most `max` bytes with any values; `max` must not exceed [`PATH_MAX`].
pub fn bytes(max: usize) -> impl Strategy<Value = &'static [u8]> + Clone {
    slice_of(&POOL, 0, max)
}

/// A string of at most `MAX` bytes, which need not be UTF-8.
pub fn text<const MAX: usize>() -> impl Strategy<Value = Text<'static, MAX>> {
    bytes(MAX).prop_map(Text)
}

/// A name that a directory may contain ([`Name::is_component`]).
pub fn component() -> impl Strategy<Value = Name<'static>> {
    slice_of(&NAME_POOL, 1, NAME_MAX).prop_map(Name)
}

/// A name as it may be received: empty, or with slashes and NULs.
pub fn name() -> impl Strategy<Value = Name<'static>> {
    bytes(NAME_MAX).prop_map(Name)
}

pub fn path() -> impl Strategy<Value = Path<'static>> {
    bytes(PATH_MAX).prop_map(Path)
}

/// Contents that are in the stream.
pub fn inline_payload() -> impl Strategy<Value = Payload<'static>> {
    bytes(PATH_MAX).prop_map(Payload::Inline)
}

pub fn status() -> impl Strategy<Value = Status> {
    select(Status::ALL)
}

/// Any status except [`Status::Ok`].
pub fn failure() -> impl Strategy<Value = Status> {
    select(&Status::ALL[1..])
}

/// The results of a procedure, with either outcome.
pub fn reply<T: std::fmt::Debug, F: std::fmt::Debug>(
    ok: impl Strategy<Value = T>,
    fail: impl Strategy<Value = F>,
) -> impl Strategy<Value = Reply<T, F>> {
    prop_oneof![
        2 => ok.prop_map(Reply::Ok),
        1 => (failure(), fail).prop_map(|(status, fail)| Reply::Fail(status, fail)),
    ]
}

pub fn file_type() -> impl Strategy<Value = FileType> {
    // Those of RFC 1813; others do not know the first.
    select(&FileType::ALL[1..])
}

pub fn stable() -> impl Strategy<Value = Stable> {
    select(Stable::ALL)
}

pub fn file_handle() -> impl Strategy<Value = FileHandle> {
    bytes(FHSIZE).prop_map(|bytes| FileHandle::new(bytes).expect("at most FHSIZE bytes"))
}

pub fn verifier() -> impl Strategy<Value = Verifier> {
    any::<[u8; 8]>().prop_map(Verifier)
}

pub fn void() -> impl Strategy<Value = Void> {
    Just(Void {})
}

/// Defines a strategy for a struct, given strategies for its fields.
macro_rules! strategies {
    ($($(#[$meta:meta])* $function:ident => $type:ident $(<$life:lifetime>)? { $($field:ident: $strategy:expr),* $(,)? })*) => {
        $(
            $(#[$meta])*
            pub fn $function() -> impl Strategy<Value = $type $(<$life>)?> {
                strategies!(@tuple [$($field: $strategy,)*] [] $type)
            }
        )*
    };
    // Tuples of strategies have at most twelve members, so the fields become nested pairs.
    (@tuple [$($field:ident: $strategy:expr,)*] [] $type:ident) => {
        strategies!(@nest $($strategy,)*).prop_map(|strategies!(@pattern $($field,)*)| $type { $($field,)* })
    };
    (@nest $first:expr, $($rest:expr,)*) => { ($first, strategies!(@nest $($rest,)*)) };
    (@nest) => { Just(()) };
    (@pattern $first:ident, $($rest:ident,)*) => { ($first, strategies!(@pattern $($rest,)*)) };
    (@pattern) => { () };
}

strategies! {
    time => Time { seconds: any::<u32>(), nanoseconds: any::<u32>() }
    spec_data => SpecData { major: any::<u32>(), minor: any::<u32>() }
    attributes => Attributes {
        kind: file_type(), mode: any::<u32>(), nlink: any::<u32>(), uid: any::<u32>(),
        gid: any::<u32>(), size: any::<u64>(), used: any::<u64>(), rdev: spec_data(),
        fsid: any::<u64>(), fileid: any::<u64>(), atime: time(), mtime: time(), ctime: time(),
    }
    wcc_attributes => WccAttributes { size: any::<u64>(), mtime: time(), ctime: time() }
    wcc_data => WccData {
        before: option::of(wcc_attributes()), after: option::of(attributes()),
    }
    set_attributes => SetAttributes {
        mode: any::<Option<u32>>(), uid: any::<Option<u32>>(), gid: any::<Option<u32>>(),
        size: any::<Option<u64>>(), atime: set_time(), mtime: set_time(),
    }
    dir_op => DirOp<'static> { dir: file_handle(), name: name() }
    getattr_args => GetattrArgs { object: file_handle() }
    setattr_args => SetattrArgs {
        object: file_handle(), new: set_attributes(), guard: option::of(time()),
    }
    lookup_args => LookupArgs<'static> { what: dir_op() }
    access_args => AccessArgs { object: file_handle(), access: any::<u32>() }
    readlink_args => ReadlinkArgs { symlink: file_handle() }
    read_args => ReadArgs { file: file_handle(), offset: any::<u64>(), count: any::<u32>() }
    write_args => WriteArgs<'static> {
        file: file_handle(), offset: any::<u64>(), count: any::<u32>(), stable: stable(),
        data: inline_payload(),
    }
    create_args => CreateArgs<'static> { at: dir_op(), how: create_how() }
    mkdir_args => MkdirArgs<'static> { at: dir_op(), attributes: set_attributes() }
    symlink_args => SymlinkArgs<'static> {
        at: dir_op(), attributes: set_attributes(), path: inline_payload(),
    }
    mknod_args => MknodArgs<'static> { at: dir_op(), what: mknod_what() }
    remove_args => RemoveArgs<'static> { what: dir_op() }
    rename_args => RenameArgs<'static> { from: dir_op(), to: dir_op() }
    link_args => LinkArgs<'static> { file: file_handle(), link: dir_op() }
    readdir_args => ReaddirArgs {
        dir: file_handle(), cookie: any::<u64>(), verifier: verifier(), count: any::<u32>(),
    }
    readdirplus_args => ReaddirplusArgs {
        dir: file_handle(), cookie: any::<u64>(), verifier: verifier(),
        dircount: any::<u32>(), maxcount: any::<u32>(),
    }
    /// Arguments of FSSTAT, FSINFO and PATHCONF.
    root_args => RootArgs { object: file_handle() }
    commit_args => CommitArgs { file: file_handle(), offset: any::<u64>(), count: any::<u32>() }
    entry => Entry<'static> { fileid: any::<u64>(), name: name(), cookie: any::<u64>() }
    entry_plus => EntryPlus<'static> {
        fileid: any::<u64>(), name: name(), cookie: any::<u64>(),
        attributes: option::of(attributes()), handle: option::of(file_handle()),
    }
    getattr_ok => GetattrOk { attributes: attributes() }
    lookup_ok => LookupOk {
        object: file_handle(), attributes: option::of(attributes()), dir: option::of(attributes()),
    }
    access_ok => AccessOk { attributes: option::of(attributes()), access: any::<u32>() }
    readlink_ok => ReadlinkOk<'static> {
        attributes: option::of(attributes()), path: inline_payload(),
    }
    read_ok => ReadOk<'static> {
        attributes: option::of(attributes()), count: any::<u32>(), eof: any::<bool>(),
        data: inline_payload(),
    }
    write_ok => WriteOk {
        wcc: wcc_data(), count: any::<u32>(), committed: stable(), verifier: verifier(),
    }
    created => Created {
        object: option::of(file_handle()), attributes: option::of(attributes()), dir: wcc_data(),
    }
    rename_wcc => RenameWcc { from_dir: wcc_data(), to_dir: wcc_data() }
    link_wcc => LinkWcc { attributes: option::of(attributes()), dir: wcc_data() }
    fsstat_ok => FsstatOk {
        attributes: option::of(attributes()), total_bytes: any::<u64>(), free_bytes: any::<u64>(),
        available_bytes: any::<u64>(), total_files: any::<u64>(), free_files: any::<u64>(),
        available_files: any::<u64>(), invarsec: any::<u32>(),
    }
    fsinfo_ok => FsinfoOk {
        attributes: option::of(attributes()), rtmax: any::<u32>(), rtpref: any::<u32>(),
        rtmult: any::<u32>(), wtmax: any::<u32>(), wtpref: any::<u32>(), wtmult: any::<u32>(),
        dtpref: any::<u32>(), max_file_size: any::<u64>(), time_delta: time(),
        properties: any::<u32>(),
    }
    pathconf_ok => PathconfOk {
        attributes: option::of(attributes()), link_max: any::<u32>(), name_max: any::<u32>(),
        no_trunc: any::<bool>(), chown_restricted: any::<bool>(),
        case_insensitive: any::<bool>(), case_preserving: any::<bool>(),
    }
    commit_ok => CommitOk { wcc: wcc_data(), verifier: verifier() }
}

pub fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![
        Just(SetTime::Keep),
        Just(SetTime::ToServerTime),
        time().prop_map(SetTime::To),
    ]
}

pub fn create_how() -> impl Strategy<Value = CreateHow> {
    prop_oneof![
        set_attributes().prop_map(CreateHow::Unchecked),
        set_attributes().prop_map(CreateHow::Guarded),
        verifier().prop_map(CreateHow::Exclusive),
    ]
}

/// The types that MKNOD can create; [`mknod_what`] includes [`MknodWhat::Other`].
pub fn mknod_special() -> impl Strategy<Value = MknodWhat> {
    prop_oneof![
        (set_attributes(), spec_data()).prop_map(|(set, device)| MknodWhat::Character(set, device)),
        (set_attributes(), spec_data()).prop_map(|(set, device)| MknodWhat::Block(set, device)),
        set_attributes().prop_map(MknodWhat::Socket),
        set_attributes().prop_map(MknodWhat::Fifo),
    ]
}

pub fn mknod_what() -> impl Strategy<Value = MknodWhat> {
    static OTHER: [FileType; 3] = [FileType::Regular, FileType::Directory, FileType::Symlink];
    prop_oneof![
        4 => mknod_special(),
        1 => select(&OTHER[..]).prop_map(MknodWhat::Other),
    ]
}

fn dir_list<E: std::fmt::Debug>(
    entry: impl Strategy<Value = E>,
) -> impl Strategy<Value = DirList<E>> {
    (
        option::of(attributes()),
        verifier(),
        vec(entry, 0..6),
        any::<bool>(),
    )
        .prop_map(|(dir, verifier, entries, eof)| DirList {
            dir,
            verifier,
            entries,
            eof,
        })
}

/// Defines strategies for the results of procedures.
macro_rules! results {
    ($($function:ident => $type:ty { $ok:expr, $fail:expr })*) => {
        $(pub fn $function() -> impl Strategy<Value = $type> {
            reply($ok, $fail)
        })*
    };
}

results! {
    getattr_res => GetattrRes { getattr_ok(), void() }
    setattr_res => SetattrRes { wcc_data(), wcc_data() }
    lookup_res => LookupRes { lookup_ok(), option::of(attributes()) }
    access_res => AccessRes { access_ok(), option::of(attributes()) }
    readlink_res => ReadlinkRes<'static> { readlink_ok(), option::of(attributes()) }
    read_res => ReadRes<'static> { read_ok(), option::of(attributes()) }
    write_res => WriteRes { write_ok(), wcc_data() }
    create_res => CreateRes { created(), wcc_data() }
    remove_res => RemoveRes { wcc_data(), wcc_data() }
    rename_res => RenameRes { rename_wcc(), rename_wcc() }
    link_res => LinkRes { link_wcc(), link_wcc() }
    readdir_res => ReaddirRes<'static> { dir_list(entry()), option::of(attributes()) }
    readdirplus_res => ReaddirplusRes<'static> {
        dir_list(entry_plus()), option::of(attributes())
    }
    fsstat_res => FsstatRes { fsstat_ok(), option::of(attributes()) }
    fsinfo_res => FsinfoRes { fsinfo_ok(), option::of(attributes()) }
    pathconf_res => PathconfRes { pathconf_ok(), option::of(attributes()) }
    commit_res => CommitRes { commit_ok(), wcc_data() }
}

pub fn mount_args() -> impl Strategy<Value = mount3::MountArgs<'static>> {
    text().prop_map(|path| mount3::MountArgs { path })
}

pub fn mount_res() -> impl Strategy<Value = mount3::MountRes> {
    use mount3::{MAX_FLAVORS, MountRes, MountStatus, Mounted};
    let mounted =
        (file_handle(), vec(any::<u32>(), 0..=MAX_FLAVORS)).prop_map(|(root, flavors)| {
            MountRes::Ok(Mounted {
                root,
                flavors: flavors.into(),
            })
        });
    prop_oneof![
        mounted,
        select(&MountStatus::ALL[1..]).prop_map(MountRes::Fail)
    ]
}

pub fn mount_list() -> impl Strategy<Value = mount3::MountList<'static>> {
    let entry = (text(), text()).prop_map(|(host, path)| mount3::MountEntry { host, path });
    vec(entry, 0..5).prop_map(mount3::MountList)
}

pub fn exports() -> impl Strategy<Value = mount3::Exports<'static>> {
    let export =
        (text(), vec(text(), 0..4)).prop_map(|(path, groups)| mount3::Export { path, groups });
    vec(export, 0..5).prop_map(mount3::Exports)
}

pub fn mapping() -> impl Strategy<Value = rpcbind::Mapping> {
    any::<[u32; 4]>().prop_map(|[program, version, protocol, port]| rpcbind::Mapping {
        program,
        version,
        protocol,
        port,
    })
}

pub fn mappings() -> impl Strategy<Value = rpcbind::List<rpcbind::Mapping>> {
    vec(mapping(), 0..5).prop_map(rpcbind::List)
}

pub fn binding() -> impl Strategy<Value = rpcbind::Binding<'static>> {
    (any::<(u32, u32)>(), text(), text(), text()).prop_map(
        |((program, version), netid, address, owner)| rpcbind::Binding {
            program,
            version,
            netid,
            address,
            owner,
        },
    )
}

pub fn bindings() -> impl Strategy<Value = rpcbind::List<rpcbind::Binding<'static>>> {
    vec(binding(), 0..5).prop_map(rpcbind::List)
}

pub fn auth_sys() -> impl Strategy<Value = rpc::AuthSys<'static>> {
    let groups = vec(any::<u32>(), 0..=rpc::MAX_GROUPS);
    (
        any::<u32>(),
        bytes(rpc::MAX_MACHINE_LEN),
        any::<(u32, u32)>(),
        groups,
    )
        .prop_map(|(stamp, machine, (uid, gid), groups)| rpc::AuthSys {
            stamp,
            machine,
            uid,
            gid,
            groups: groups.into(),
        })
}

pub fn auth() -> impl Strategy<Value = rpc::Auth<'static>> {
    prop_oneof![
        Just(rpc::Auth::None),
        auth_sys().prop_map(rpc::Auth::Sys),
        (2u32.., bytes(rpc::MAX_AUTH_LEN))
            .prop_map(|(flavor, body)| rpc::Auth::Other { flavor, body }),
    ]
}

pub fn call() -> impl Strategy<Value = rpc::Call<'static>> {
    (any::<[u32; 4]>(), auth(), auth()).prop_map(
        |([xid, program, version, procedure], credential, verifier)| rpc::Call {
            xid,
            program,
            version,
            procedure,
            credential,
            verifier,
        },
    )
}

pub fn rpc_reply() -> impl Strategy<Value = rpc::Reply<'static>> {
    use rpc::{Accepted, AuthStat, Denial, Reply, ReplyBody};
    let accepted = prop_oneof![
        Just(Accepted::Success),
        Just(Accepted::ProgUnavail),
        any::<(u32, u32)>().prop_map(|(low, high)| Accepted::ProgMismatch { low, high }),
        Just(Accepted::ProcUnavail),
        Just(Accepted::GarbageArgs),
        Just(Accepted::SystemErr),
    ];
    let denial = prop_oneof![
        any::<(u32, u32)>().prop_map(|(low, high)| Denial::RpcMismatch { low, high }),
        select(AuthStat::ALL).prop_map(Denial::AuthError),
    ];
    let body = prop_oneof![
        (auth(), accepted).prop_map(|(verifier, status)| ReplyBody::Accepted(verifier, status)),
        denial.prop_map(ReplyBody::Denied),
    ];
    (any::<u32>(), body).prop_map(|(xid, body)| Reply { xid, body })
}

pub fn segment() -> impl Strategy<Value = rpcrdma::Segment> {
    any::<(u32, u32, u64)>().prop_map(|(handle, length, offset)| rpcrdma::Segment {
        handle,
        length,
        offset,
    })
}

pub fn read_segment() -> impl Strategy<Value = rpcrdma::ReadSegment> {
    (0..=u32::MAX / 4, segment()).prop_map(|(words, target)| rpcrdma::ReadSegment {
        position: words * 4,
        target,
    })
}

/// A Write chunk of up to nine segments, which may be empty, inline or allocated.
pub fn write_chunk() -> impl Strategy<Value = rpcrdma::WriteChunk> {
    vec(segment(), 0..10).prop_map(rpcrdma::WriteChunk::from_iter)
}

pub fn chunk_lists() -> impl Strategy<Value = rpcrdma::ChunkLists> {
    (
        vec(read_segment(), 0..7),
        vec(write_chunk(), 0..4),
        option::of(write_chunk()),
    )
        .prop_map(|(reads, writes, reply)| rpcrdma::ChunkLists {
            reads: reads.into(),
            writes: writes.into(),
            reply,
        })
}

/// A header of version 1 that a peer may send, including the retired procedures.
pub fn header() -> impl Strategy<Value = rpcrdma::Header> {
    use rpcrdma::{Body, ErrorBody};
    let nomsg = chunk_lists().prop_filter("RDMA_NOMSG has a chunk", |lists| !lists.is_empty());
    let body = prop_oneof![
        4 => chunk_lists().prop_map(Body::Msg),
        4 => nomsg.prop_map(Body::NoMsg),
        1 => (any::<(u32, u32)>(), chunk_lists()).prop_map(|((align, threshold), chunks)| {
            Body::MsgP { align, threshold, chunks }
        }),
        1 => LazyJust::new(|| Body::Done),
        1 => any::<(u32, u32)>()
            .prop_map(|(low, high)| Body::Error(ErrorBody::ErrVers { low, high })),
        1 => LazyJust::new(|| Body::Error(ErrorBody::ErrChunk)),
        1 => (3u32..).prop_map(|code| Body::Error(ErrorBody::Other(code))),
    ];
    (any::<(u32, u32)>(), body)
        .prop_map(|((xid, credits), body)| rpcrdma::Header::new(xid, credits, body))
}
