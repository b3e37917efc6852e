/*
 * A FUSE client on libnfs over TCP, to compare with: libfuse's high-level interface, several
 * calls in flight on one connection. `libnfs SERVER-URL DIR`, in the foreground until it is
 * unmounted; the URL is libnfs's (nfs://host/export?nfsport=P&mountport=P).
 *
 * As fair as its parts allow: requests of 1 MiB, the kernel's read-ahead raised to the
 * 4 MiB that nfsrdma reads ahead by itself, attribute and name times of nfsrdma's defaults, the
 * kernel's page cache kept while a file is unchanged, calls sent by the thread that asks. What it lacks is libnfs's or the
 * interface's: paths are looked up from the root for each call, data are copied, and closing a
 * file does not force what was written to stable storage (fsync does).
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <nfsc/libnfs.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static struct nfs_context *nfs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int wake;
static const char *mount_dir;

/* One call, from its sending to its answer. */
struct call {
	pthread_cond_t over;
	int done;
	int result;
	void *data;
	/* Where what was read goes: libnfs owns its buffer only during the callback. */
	char *to;
};

static void answered(int result, struct nfs_context *context, void *data, void *of)
{
	struct call *call = of;

	(void)context;
	call->result = result;
	call->data = data;
	if (result > 0 && call->to)
		memcpy(call->to, data, result);
	call->done = 1;
	pthread_cond_signal(&call->over);
}

static void answered_stat(int result, struct nfs_context *context, void *data, void *of)
{
	struct call *call = of;

	(void)context;
	if (result >= 0)
		memcpy(call->to, data, sizeof(struct nfs_stat_64));
	call->result = result;
	call->done = 1;
	pthread_cond_signal(&call->over);
}

/* Sends with the lock held, waits for the answer. `sending` is what queued the call. */
static int finish(struct call *call, int queued)
{
	uint64_t one = 1;

	if (queued < 0) {
		pthread_mutex_unlock(&lock);
		return -EIO;
	}
	/* Sent at once, by this thread, if the socket takes it. */
	if (nfs_which_events(nfs) & POLLOUT)
		nfs_service(nfs, POLLOUT);
	if (nfs_which_events(nfs) & POLLOUT && write(wake, &one, sizeof one) < 0)
		call->result = -errno;
	while (!call->done)
		pthread_cond_wait(&call->over, &lock);
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&call->over);
	return call->result;
}

#define CALL(call, sending)                                                       \
	(pthread_mutex_lock(&lock), finish(&(call), (sending)))
#define NEW(name) struct call name = { .over = PTHREAD_COND_INITIALIZER }

static void *serve(void *unused)
{
	(void)unused;
	for (;;) {
		struct pollfd fds[2] = { { 0 }, { .fd = wake, .events = POLLIN } };
		uint64_t count;

		pthread_mutex_lock(&lock);
		fds[0].fd = nfs_get_fd(nfs);
		fds[0].events = nfs_which_events(nfs);
		pthread_mutex_unlock(&lock);
		if (poll(fds, 2, 1000) < 0 && errno != EINTR)
			break;
		if (fds[1].revents & POLLIN && read(wake, &count, sizeof count) < 0)
			break;
		pthread_mutex_lock(&lock);
		int bad = nfs_service(nfs, fds[0].revents) < 0;
		pthread_mutex_unlock(&lock);
		if (bad) {
			fprintf(stderr, "libnfs: %s\n", nfs_get_error(nfs));
			exit(1);
		}
	}
	return NULL;
}

static void tell(struct stat *to, const struct nfs_stat_64 *from)
{
	memset(to, 0, sizeof *to);
	to->st_ino = from->nfs_ino;
	to->st_mode = from->nfs_mode;
	to->st_nlink = from->nfs_nlink;
	to->st_uid = from->nfs_uid;
	to->st_gid = from->nfs_gid;
	to->st_size = from->nfs_size;
	to->st_blksize = 4096;
	to->st_blocks = from->nfs_used / 512;
	to->st_atim = (struct timespec){ from->nfs_atime, from->nfs_atime_nsec };
	to->st_mtim = (struct timespec){ from->nfs_mtime, from->nfs_mtime_nsec };
	to->st_ctim = (struct timespec){ from->nfs_ctime, from->nfs_ctime_nsec };
}

static struct nfsfh *file(struct fuse_file_info *info)
{
	return (struct nfsfh *)(uintptr_t)info->fh;
}

static int do_getattr(const char *path, struct stat *to, struct fuse_file_info *info)
{
	struct nfs_stat_64 found;
	NEW(call);

	call.to = (char *)&found;
	int result = CALL(call, info && info->fh
		? nfs_fstat64_async(nfs, file(info), answered_stat, &call)
		: nfs_lstat64_async(nfs, path, answered_stat, &call));
	if (result >= 0)
		tell(to, &found);
	return result < 0 ? result : 0;
}

static int opened(struct call *call, int result, struct fuse_file_info *info)
{
	if (result < 0)
		return result;
	info->fh = (uintptr_t)call->data;
	return 0;
}

static int do_open(const char *path, struct fuse_file_info *info)
{
	NEW(call);
	int result = CALL(call, nfs_open_async(nfs, path, info->flags, answered, &call));
	return opened(&call, result, info);
}

static int do_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
	NEW(call);
	int result = CALL(call,
		nfs_create_async(nfs, path, info->flags, mode & 07777, answered, &call));
	return opened(&call, result, info);
}

static int do_read(const char *path, char *to, size_t size, off_t at, struct fuse_file_info *info)
{
	size_t got = 0;

	(void)path;
	while (got < size) {
		NEW(call);
		call.to = to + got;
		int result = CALL(call, nfs_pread_async(nfs, file(info), at + got, size - got,
							answered, &call));
		if (result < 0)
			return result;
		if (result == 0)
			break;
		got += result;
	}
	return got;
}

static int do_write(const char *path, const char *from, size_t size, off_t at,
		    struct fuse_file_info *info)
{
	size_t put = 0;

	(void)path;
	while (put < size) {
		NEW(call);
		int result = CALL(call, nfs_pwrite_async(nfs, file(info), at + put, size - put,
							 from + put, answered, &call));
		if (result <= 0)
			return result < 0 ? result : -EIO;
		put += result;
	}
	return put;
}

static int do_fsync(const char *path, int data_only, struct fuse_file_info *info)
{
	NEW(call);
	(void)path, (void)data_only;
	return CALL(call, nfs_fsync_async(nfs, file(info), answered, &call));
}

static int do_release(const char *path, struct fuse_file_info *info)
{
	NEW(call);
	(void)path;
	return CALL(call, nfs_close_async(nfs, file(info), answered, &call));
}

static int do_unlink(const char *path)
{
	NEW(call);
	return CALL(call, nfs_unlink_async(nfs, path, answered, &call));
}

static int do_rmdir(const char *path)
{
	NEW(call);
	return CALL(call, nfs_rmdir_async(nfs, path, answered, &call));
}

static int do_mkdir(const char *path, mode_t mode)
{
	NEW(call);
	return CALL(call, nfs_mkdir2_async(nfs, path, mode & 07777, answered, &call));
}

static int do_rename(const char *from, const char *to, unsigned int flags)
{
	NEW(call);
	return flags ? -EINVAL : CALL(call, nfs_rename_async(nfs, from, to, answered, &call));
}

static int do_chmod(const char *path, mode_t mode, struct fuse_file_info *info)
{
	NEW(call);
	(void)info;
	return CALL(call, nfs_chmod_async(nfs, path, mode & 07777, answered, &call));
}

static int do_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *info)
{
	NEW(call);
	(void)info;
	return CALL(call, nfs_lchown_async(nfs, path, uid, gid, answered, &call));
}

static int do_truncate(const char *path, off_t size, struct fuse_file_info *info)
{
	NEW(call);
	return CALL(call, info && info->fh
		? nfs_ftruncate_async(nfs, file(info), size, answered, &call)
		: nfs_truncate_async(nfs, path, size, answered, &call));
}

static int do_utimens(const char *path, const struct timespec times[2],
		      struct fuse_file_info *info)
{
	struct timespec now;
	struct timeval both[2];
	NEW(call);

	(void)info;
	clock_gettime(CLOCK_REALTIME, &now);
	for (int n = 0; n < 2; n++) {
		const struct timespec *at = times[n].tv_nsec == UTIME_NOW ? &now : &times[n];
		both[n] = (struct timeval){ at->tv_sec, at->tv_nsec / 1000 };
	}
	return CALL(call, nfs_utimes_async(nfs, path, both, answered, &call));
}

static int do_opendir(const char *path, struct fuse_file_info *info)
{
	NEW(call);
	int result = CALL(call, nfs_opendir_async(nfs, path, answered, &call));
	return opened(&call, result, info);
}

/* libnfs has the whole directory, with attributes, since it was opened. */
static int do_readdir(const char *path, void *to, fuse_fill_dir_t fill, off_t at,
		      struct fuse_file_info *info, enum fuse_readdir_flags flags)
{
	struct nfsdir *dir = (struct nfsdir *)(uintptr_t)info->fh;
	struct nfsdirent *entry;

	(void)path, (void)at, (void)flags;
	pthread_mutex_lock(&lock);
	nfs_seekdir(nfs, dir, 0);
	while ((entry = nfs_readdir(nfs, dir))) {
		struct stat of;
		struct nfs_stat_64 from = {
			.nfs_ino = entry->inode, .nfs_mode = entry->mode,
			.nfs_nlink = entry->nlink, .nfs_uid = entry->uid, .nfs_gid = entry->gid,
			.nfs_size = entry->size, .nfs_used = entry->used,
			.nfs_atime = entry->atime.tv_sec, .nfs_mtime = entry->mtime.tv_sec,
			.nfs_ctime = entry->ctime.tv_sec, .nfs_atime_nsec = entry->atime_nsec,
			.nfs_mtime_nsec = entry->mtime_nsec, .nfs_ctime_nsec = entry->ctime_nsec,
		};
		/* NFSv3's numbers of the types (RFC 1813 section 2.5). */
		static const mode_t types[] = { 0, S_IFREG, S_IFDIR, S_IFBLK, S_IFCHR, S_IFLNK };
		tell(&of, &from);
		if (!(of.st_mode & S_IFMT) && entry->type < sizeof types / sizeof *types)
			of.st_mode |= types[entry->type];
		if (fill(to, entry->name, &of, 0, FUSE_FILL_DIR_PLUS))
			break;
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

static int do_releasedir(const char *path, struct fuse_file_info *info)
{
	(void)path;
	pthread_mutex_lock(&lock);
	nfs_closedir(nfs, (struct nfsdir *)(uintptr_t)info->fh);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* The kernel's read-ahead: INIT cannot raise it, sysfs can. Answering stat(2) needs a thread
   besides the one that is in init. */
static void *raise_read_ahead(void *unused)
{
	struct stat of;
	char path[64];

	(void)unused;
	if (stat(mount_dir, &of) == 0) {
		snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb",
			 major(of.st_dev), minor(of.st_dev));
		FILE *to = fopen(path, "w");
		if (to) {
			fputs("4096\n", to);
			fclose(to);
		}
	}
	return NULL;
}

static void *do_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
	pthread_t thread;

	connection->max_write = 1 << 20;
	connection->max_readahead = 1 << 20;
	connection->max_background = 64;
	config->auto_cache = 1;
	config->attr_timeout = 3;
	config->ac_attr_timeout = 3;
	config->entry_timeout = 30;
	config->use_ino = 1;
	config->nullpath_ok = 1;
	if (pthread_create(&thread, NULL, serve, NULL) == 0)
		pthread_detach(thread);
	if (pthread_create(&thread, NULL, raise_read_ahead, NULL) == 0)
		pthread_detach(thread);
	return NULL;
}

static const struct fuse_operations operations = {
	.init = do_init, .getattr = do_getattr, .open = do_open, .create = do_create,
	.read = do_read, .write = do_write, .fsync = do_fsync, .release = do_release,
	.unlink = do_unlink, .rmdir = do_rmdir, .mkdir = do_mkdir, .rename = do_rename,
	.chmod = do_chmod, .chown = do_chown, .truncate = do_truncate, .utimens = do_utimens,
	.opendir = do_opendir, .readdir = do_readdir, .releasedir = do_releasedir,
};

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s NFS-URL DIR\n", argv[0]);
		return 2;
	}
	mount_dir = argv[2];
	nfs = nfs_init_context();
	struct nfs_url *url = nfs ? nfs_parse_url_dir(nfs, argv[1]) : NULL;
	if (!url || nfs_mount(nfs, url->server, url->path)) {
		fprintf(stderr, "libnfs: %s\n", nfs ? nfs_get_error(nfs) : "no memory");
		return 1;
	}
	wake = eventfd(0, EFD_CLOEXEC);
	umask(0);
	char *words[] = { argv[0], "-f", "-o", "fsname=libnfs,subtype=libnfs", argv[2], NULL };
	return fuse_main(5, words, &operations, NULL);
}
