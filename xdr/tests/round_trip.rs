//! Every type survives encoding and decoding, and no part of an encoding is decoded as the whole.

use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder, Payload};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpcrdma::{Header, HeaderError, MIN_HEADER_LEN};
use nfsrdma_xdr::support::{locking, security, strategies};
use nfsrdma_xdr::{mount3, nfs_acl, nlm4, nsm, rpc, rpcbind, rpcrdma, rpcsec_gss};
use proptest::prelude::*;

/// Defines a test for each type, over values of the strategy with the same name.
macro_rules! round_trips {
    ($strategies:ident: $($name:ident: $type:ty),* $(,)?) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]
            $(
                #[test]
                fn $name(value in $strategies::$name()) {
                    let bytes = value.to_xdr();
                    prop_assert_eq!(bytes.len() % 4, 0);
                    let decoded = <$type>::from_xdr(&bytes);
                    prop_assert_eq!(decoded.as_ref(), Ok(&value));

                    // Decoding starts where the decoder is, and ends where the value ends.
                    let mut longer = vec![0xee; 4];
                    longer.extend(&bytes);
                    longer.extend([0xee; 4]);
                    let mut decoder = Decoder::new(&longer);
                    decoder.take(4).unwrap();
                    let decoded = <$type>::decode(&mut decoder);
                    prop_assert_eq!(decoded.as_ref(), Ok(&value));
                    prop_assert_eq!(decoder.remaining(), 4);
                    prop_assert!(<$type>::from_xdr(&longer[4..]).is_err());

                    for len in 0..bytes.len() {
                        prop_assert!(<$type>::from_xdr(&bytes[..len]).is_err(), "cut at {}", len);
                    }
                }
            )*
        }
    };
}

/// Defines a test for each procedure: what its longest results take, and that none are longer.
macro_rules! maxima {
    ($($name:ident: $procedure:ty, $args:ident, $res:ident, $most:expr;)*) => {
        mod maxima {
            use super::*;
            proptest! {
                $(
                    #[test]
                    fn $name(args in strategies::$args(), res in strategies::$res()) {
                        prop_assert_eq!(<$procedure>::max_results(&args), $most);
                        prop_assert_eq!(<$procedure>::max_ddp_result(&args), 0);
                        prop_assert!(res.to_xdr().len() <= $most);
                    }
                )*
            }
        }
    };
}

maxima! {
    getattr: Getattr, getattr_args, getattr_res, 88;
    setattr: Setattr, setattr_args, setattr_res, 120;
    lookup: Lookup, lookup_args, lookup_res, 248;
    access: Access, access_args, access_res, 96;
    write: Write, write_args, write_res, 136;
    create: Create, create_args, create_res, 280;
    mkdir: Mkdir, mkdir_args, create_res, 280;
    symlink: Symlink, symlink_args, create_res, 280;
    mknod: Mknod, mknod_args, create_res, 280;
    remove: Remove, remove_args, remove_res, 120;
    rmdir: Rmdir, remove_args, remove_res, 120;
    rename: Rename, rename_args, rename_res, 236;
    link: Link, link_args, link_res, 208;
    fsstat: Fsstat, root_args, fsstat_res, 144;
    fsinfo: Fsinfo, root_args, fsinfo_res, 140;
    pathconf: Pathconf, root_args, pathconf_res, 116;
    commit: Commit, commit_args, commit_res, 128;
}

round_trips! { locking:
    nlm_lock_args: nlm4::LockArgs<'_>,
    nlm_test_args: nlm4::TestArgs<'_>,
    nlm_cancel_args: nlm4::CancelArgs<'_>,
    nlm_unlock_args: nlm4::UnlockArgs<'_>,
    nlm_res: nlm4::Res<'_>,
    nlm_test_res: nlm4::TestRes<'_>,
    nlm_notify: nlm4::Notify<'_>,

    nsm_monitor: nsm::Monitor<'_>,
    nsm_stat_res: nsm::StatRes,
    nsm_state_change: nsm::StateChange<'_>,
    nsm_host_status: nsm::HostStatus<'_>,

    getacl_args: nfs_acl::GetaclArgs,
    getacl_res: nfs_acl::GetaclRes,
    setacl_args: nfs_acl::SetaclArgs,
    setacl_res: nfs_acl::SetaclRes,
}

round_trips! { security:
    gss_credential: rpcsec_gss::Credential<'_>,
    gss_init_args: rpcsec_gss::InitArgs<'_>,
    gss_init_res: rpcsec_gss::InitRes<'_>,
    gss_integrity_body: rpcsec_gss::IntegrityBody<'_>,
    gss_privacy_body: rpcsec_gss::PrivacyBody<'_>,
}

round_trips! { strategies:
    void: Void,
    status: Status,
    file_type: FileType,
    stable: Stable,
    file_handle: FileHandle,
    name: Name<'_>,
    path: Path<'_>,
    verifier: Verifier,
    time: Time,
    spec_data: SpecData,
    dir_op: DirOp<'_>,
    attributes: Attributes,
    wcc_attributes: WccAttributes,
    wcc_data: WccData,
    set_time: SetTime,
    set_attributes: SetAttributes,
    create_how: CreateHow,
    mknod_what: MknodWhat,
    entry: Entry<'_>,
    entry_plus: EntryPlus<'_>,

    getattr_args: GetattrArgs,
    getattr_res: GetattrRes,
    setattr_args: SetattrArgs,
    setattr_res: SetattrRes,
    lookup_args: LookupArgs<'_>,
    lookup_res: LookupRes,
    access_args: AccessArgs,
    access_res: AccessRes,
    readlink_args: ReadlinkArgs,
    readlink_res: ReadlinkRes<'_>,
    read_args: ReadArgs,
    read_res: ReadRes<'_>,
    write_args: WriteArgs<'_>,
    write_res: WriteRes,
    create_args: CreateArgs<'_>,
    create_res: CreateRes,
    mkdir_args: MkdirArgs<'_>,
    symlink_args: SymlinkArgs<'_>,
    mknod_args: MknodArgs<'_>,
    remove_args: RemoveArgs<'_>,
    remove_res: RemoveRes,
    rename_args: RenameArgs<'_>,
    rename_res: RenameRes,
    link_args: LinkArgs<'_>,
    link_res: LinkRes,
    readdir_args: ReaddirArgs,
    readdir_res: ReaddirRes<'_>,
    readdirplus_args: ReaddirplusArgs,
    readdirplus_res: ReaddirplusRes<'_>,
    root_args: RootArgs,
    fsstat_res: FsstatRes,
    fsinfo_res: FsinfoRes,
    pathconf_res: PathconfRes,
    commit_args: CommitArgs,
    commit_res: CommitRes,

    mount_args: mount3::MountArgs<'_>,
    mount_res: mount3::MountRes,
    mount_list: mount3::MountList<'_>,
    exports: mount3::Exports<'_>,

    mapping: rpcbind::Mapping,
    mappings: rpcbind::List<rpcbind::Mapping>,
    binding: rpcbind::Binding<'_>,
    bindings: rpcbind::List<rpcbind::Binding<'_>>,

    auth: rpc::Auth<'_>,
    auth_sys: rpc::AuthSys<'_>,
    call: rpc::Call<'_>,
    rpc_reply: rpc::Reply<'_>,

    segment: rpcrdma::Segment,
    read_segment: rpcrdma::ReadSegment,
    chunk_lists: rpcrdma::ChunkLists,
}

proptest! {
    #[test]
    fn header(header in strategies::header(), payload in prop::collection::vec(any::<u8>(), 0..40)) {
        let bytes = header.to_xdr();
        prop_assert_eq!(bytes.len(), header.encoded_len());
        if let Some(chunks) = header.chunks() {
            prop_assert_eq!(chunks.to_xdr().len(), chunks.encoded_len());
            for chunk in chunks.writes.iter().chain(&chunks.reply) {
                prop_assert_eq!(chunk.to_xdr().len(), chunk.encoded_len());
            }
        }
        for len in 0..bytes.len() {
            let error = Header::parse(&bytes[..len]).expect_err("cut");
            let short = matches!(error, HeaderError::TooShort(_));
            prop_assert_eq!(short, len < MIN_HEADER_LEN
                && !(len >= 20 && matches!(header.body, rpcrdma::Body::Error(_))));
        }
        let message = [&bytes[..], &payload].concat();
        if message.len() >= MIN_HEADER_LEN {
            prop_assert_eq!(Header::parse(&message), Ok((header, bytes.len())));
        }
    }

    #[test]
    fn rpc_headers_know_their_length(call in strategies::call(), reply in strategies::rpc_reply()) {
        prop_assert_eq!(call.to_xdr().len(), call.encoded_len());
        prop_assert!(call.encoded_len() <= rpc::MAX_CALL_LEN);
        prop_assert_eq!(reply.to_xdr().len(), reply.encoded_len());
        prop_assert!(reply.encoded_len() <= rpc::MAX_REPLY_LEN);
    }

    #[test]
    fn signed_headers_begin_calls(header in security::gss_signed_header(), mic in strategies::bytes(64)) {
        let signed = header.to_xdr();
        prop_assert_eq!(signed.len(), header.encoded_len());
        let mut to = Encoder::new(signed.clone());
        rpcsec_gss::verifier(mic).encode(&mut to);
        let call = rpc::Call::from_xdr(to.as_slice()).expect("a call");
        prop_assert_eq!(call.signed_len(), signed.len());
        prop_assert_eq!(rpcsec_gss::Credential::of(&call.credential), Some(Ok(header.credential)));
        prop_assert_eq!(rpcsec_gss::mic_of(&call.verifier), Some(mic));
        prop_assert_eq!((call.xid, call.procedure), (header.xid, header.procedure));
        prop_assert_eq!(call.to_xdr(), to.into_vec());
    }

    #[test]
    fn bodies_know_their_length(sequence in any::<u32>(), words in 0usize..40, mic in strategies::bytes(64)) {
        let args = vec![0x5a; 4 * words];
        let data = [&sequence.to_be_bytes(), &args[..]].concat();
        prop_assert_eq!(rpcsec_gss::split(&data), Ok((sequence, &args[..])));
        let body = rpcsec_gss::IntegrityBody {
            data: rpcsec_gss::Opaque(&data),
            mic: rpcsec_gss::Opaque(mic),
        };
        let bytes = body.to_xdr();
        prop_assert_eq!(bytes.len(), rpcsec_gss::integrity_len(args.len(), mic.len()));
        prop_assert_eq!(&bytes[..8], rpcsec_gss::integrity_head(sequence, args.len()));
        let wrapped = [&data, mic].concat();
        let body = rpcsec_gss::PrivacyBody { wrapped: rpcsec_gss::Opaque(&wrapped) };
        prop_assert_eq!(body.to_xdr().len(), rpcsec_gss::privacy_len(args.len(), mic.len()));
    }

    #[test]
    fn templates_equal_calls(call in strategies::call()) {
        let template = rpc::CallTemplate::new(call.program, call.version, call.credential.clone());
        let mut to = Encoder::default();
        template.encode(call.xid, call.procedure, &mut to);
        let call = rpc::Call { verifier: rpc::Auth::None, ..call };
        prop_assert_eq!(to.into_vec(), call.to_xdr());
    }

    //= RFC 8166, Section 3.4.4.1
    //= type=test
    //# If a chunk contains a counted array data type, [...]
    //= RFC 8166, Section 3.4.4.4
    //= type=test
    //# When a variable-length XDR data item is reduced, the [...]
    //= RFC 8166, Section 3.4.5
    //= type=test
    //# The Position value MUST be computed from the beginning [...]
    /// A reduced stream with the item's bytes and padding, inserted where the encoder says, equals
    /// the unreduced stream (RFC 8166 section 3.4.5).
    #[test]
    fn reduced_write(args in strategies::write_args()) {
        let Payload::Inline(data) = args.data else { unreachable!("inline_payload()") };
        let placed = Payload::Placed(data.len() as u32);
        let reduced = WriteArgs { data: placed, ..args };
        let mut to = Encoder::default();
        reduced.encode(&mut to);
        let position = to.placed_at().unwrap();
        let mut whole = to.into_vec();
        let mut from = Decoder::with_placed(&whole, data.len() as u32);
        prop_assert_eq!(WriteArgs::decode(&mut from), Ok(reduced));
        from.finish().unwrap();
        // The length of the chunk may exceed that of the item by up to three bytes of padding.
        let mut from = Decoder::with_placed(&whole, data.len() as u32 + 4);
        prop_assert!(WriteArgs::decode(&mut from).is_err());
        if let Some(less) = (data.len() as u32).checked_sub(1) {
            let mut from = Decoder::with_placed(&whole, less);
            prop_assert!(WriteArgs::decode(&mut from).is_err());
        }

        let item = data.iter().copied().chain(vec![0; data.len().next_multiple_of(4) - data.len()]);
        whole.splice(position..position, item);
        prop_assert_eq!(whole, args.to_xdr());
    }

    #[test]
    fn reduced_read(ok in strategies::read_ok()) {
        let placed = Payload::Placed(ok.data.len() as u32);
        let reduced: ReadRes<'_> = Reply::Ok(ReadOk { data: placed, ..ok });
        let bytes = reduced.to_xdr();
        let mut from = Decoder::with_placed(&bytes, ok.data.len() as u32);
        prop_assert_eq!(ReadRes::decode(&mut from), Ok(reduced));
        from.finish().unwrap();
    }

    #[test]
    fn generated_components_are_components(name in strategies::component()) {
        prop_assert!(name.is_component());
    }
}
