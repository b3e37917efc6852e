//! FSSTAT, FSINFO and PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20).

use super::{FileSystem, Inode, Result, status};
use nfsrdma_xdr::nfs3::{
    FileHandle, FsinfoOk, FsinfoRes, FsstatOk, FsstatRes, PathconfOk, PathconfRes, Reply, RootArgs,
    fsf,
};

impl FileSystem {
    pub fn fsstat(&self, args: &RootArgs) -> FsstatRes {
        self.about(&args.object, |_, attributes, statvfs| FsstatOk {
            attributes,
            total_bytes: statvfs.f_blocks.saturating_mul(statvfs.f_frsize),
            free_bytes: statvfs.f_bfree.saturating_mul(statvfs.f_frsize),
            available_bytes: statvfs.f_bavail.saturating_mul(statvfs.f_frsize),
            total_files: statvfs.f_files,
            free_files: statvfs.f_ffree,
            available_files: statvfs.f_favail,
            invarsec: 0,
        })
    }

    pub fn fsinfo(&self, args: &RootArgs) -> FsinfoRes {
        let (rtmax, wtmax) = (self.settings.rtmax, self.settings.wtmax);
        self.about(&args.object, |inode, attributes, statvfs| FsinfoOk {
            attributes,
            rtmax,
            rtpref: rtmax,
            rtmult: (statvfs.f_bsize as u32).min(rtmax).max(1),
            wtmax,
            wtpref: wtmax,
            wtmult: (statvfs.f_bsize as u32).min(wtmax).max(1),
            dtpref: super::dir::DTPREF,
            max_file_size: self.max_file_size(inode),
            time_delta: self.variants.time_delta(),
            properties: fsf::LINK | fsf::SYMLINK | fsf::HOMOGENEOUS | fsf::CANSETTIME,
        })
    }

    pub fn pathconf(&self, args: &RootArgs) -> PathconfRes {
        self.about(&args.object, |_, attributes, statvfs| PathconfOk {
            attributes,
            // The limit of ext4; a file system answers MLINK at its own limit.
            link_max: 65000,
            name_max: statvfs.f_namemax.min(255) as u32,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }

    fn about<T>(
        &self,
        object: &FileHandle,
        answer: impl FnOnce(&Inode, Option<nfsrdma_xdr::nfs3::Attributes>, rustix::fs::StatVfs) -> T,
    ) -> Reply<T, Option<nfsrdma_xdr::nfs3::Attributes>> {
        let result: Result<T> = (|| {
            let inode = self.resolve(object)?;
            let attributes = self.attributes(&inode)?;
            let statvfs = rustix::fs::fstatvfs(inode.fd()).map_err(status::of)?;
            Ok(answer(&inode, Some(attributes), statvfs))
        })();
        match result {
            Ok(ok) => Reply::Ok(ok),
            Err(status) => Reply::Fail(status, None),
        }
    }
}
