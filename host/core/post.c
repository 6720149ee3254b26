/* SPDX-License-Identifier: BSD-3-Clause */
/* post - see post.h. */
#include "config.h"

#include "host/core/post.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

bh_status bh_postbox_init(struct bh_postbox *box, struct bh_error *err)
{
	atomic_init(&box->head, NULL);
	box->kept = NULL;
	box->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (box->fd < 0)
		return bh_raise(err, -errno, "post.eventfd");
	return 0;
}

void bh_postbox_fini(struct bh_postbox *box)
{
	assert(bh_postbox_is_empty(box)); /* a message that nobody takes would be lost */
	if (box->fd >= 0)
		close(box->fd);
	box->fd = -1;
}

void bh_wake_fd(int fd)
{
	const uint64_t one = 1;
	ssize_t n;

	do
		n = write(fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
	/* EAGAIN: the counter is full, so the fd is readable all the same. */
}

void bh_postbox_post(struct bh_postbox *box, struct bh_message *message)
{
	struct bh_message *head = atomic_load_explicit(&box->head, memory_order_relaxed);
	int fd = box->fd; /* read now: once it is pushed the receiver may be done with all of it */

	do
		message->next = head;
	while (!atomic_compare_exchange_weak_explicit(&box->head, &head, message,
						      memory_order_release, memory_order_relaxed));
	if (!head) /* else whoever pushed onto the empty stack wakes the receiver */
		bh_wake_fd(fd);
}

static struct bh_message *take_pushed(struct bh_postbox *box)
{
	struct bh_message *stack, *oldest = NULL;
	uint64_t count;
	ssize_t n;

	/* The fd first: a message pushed after this makes it readable again, one before is taken
	 * now. */
	do
		n = read(box->fd, &count, sizeof(count));
	while (n < 0 && errno == EINTR);
	stack = atomic_exchange_explicit(&box->head, NULL, memory_order_acquire);
	while (stack) {
		struct bh_message *next = stack->next;

		stack->next = oldest;
		oldest = stack;
		stack = next;
	}
	return oldest;
}

struct bh_message *bh_postbox_take(struct bh_postbox *box)
{
	struct bh_message *pushed = take_pushed(box), *oldest = box->kept;
	struct bh_message **end = &oldest;

	while (*end)
		end = &(*end)->next;
	*end = pushed;
	box->kept = NULL;
	return oldest;
}

struct bh_message *bh_postbox_take_some(struct bh_postbox *box, uint32_t n)
{
	struct bh_message *oldest, **end = &oldest;

	if (!box->kept)
		box->kept = take_pushed(box);
	oldest = box->kept;
	while (*end && n-- > 0)
		end = &(*end)->next;
	box->kept = *end;
	*end = NULL;
	if (box->kept)
		bh_wake_fd(box->fd);
	return oldest;
}

bool bh_postbox_is_empty(const struct bh_postbox *box)
{
	return !box->kept && !atomic_load_explicit(&box->head, memory_order_relaxed);
}

void bh_postbox_deliver(struct bh_postbox *box)
{
	struct bh_message *message = bh_postbox_take(box);

	while (message) {
		struct bh_message *next = message->next; /* deliver() owns the message */

		message->deliver(message);
		message = next;
	}
}

struct bh_request *bh_request_new(enum bh_request_kind kind, struct bh_postbox *reply_to,
				  void (*done)(struct bh_request *), void *done_arg)
{
	struct bh_request *request = calloc(1, sizeof(*request));

	if (!request)
		return NULL;
	request->kind = kind;
	request->reply_to = reply_to;
	request->done = done;
	request->done_arg = done_arg;
	return request;
}

struct bh_request *bh_request_free(struct bh_request *request)
{
	if (!request)
		return NULL;
	free(request->endpoint);
	free(request->app);
	free(request->body);
	free(request->content_type);
	free(request->accept);
	free(request->query);
	free(request->reply);
	free(request);
	return NULL;
}

static void request_deliver_reply(struct bh_message *message)
{
	struct bh_request *request = bh_container_of(message, struct bh_request, message);

	request->done(request);
}

void bh_request_reply(struct bh_request *request)
{
	request->message.deliver = request_deliver_reply;
	bh_postbox_post(request->reply_to, &request->message);
}
