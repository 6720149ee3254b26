/* SPDX-License-Identifier: BSD-3-Clause */
/* test_post - host/core/post.c and view.c. */
#include "config.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "host/core/clock.h"
#include "host/core/post.h"
#include "host/core/view.h"
#include "tests/unit/tap.h"

static bool readable(const struct bh_postbox *box, int timeout_ms)
{
	struct pollfd fd = { .fd = box->fd, .events = POLLIN };

	return poll(&fd, 1, timeout_ms) == 1;
}

struct numbered {
	struct bh_message message;
	int sender, number;
	int *delivered;
};

static void deliver(struct bh_message *message)
{
	struct numbered *numbered = bh_container_of(message, struct numbered, message);

	*numbered->delivered = *numbered->delivered * 10 + numbered->number;
}

static void keeps_order(void)
{
	struct bh_postbox box;
	int delivered = 0;
	struct numbered m[3] = { { { .deliver = deliver }, 0, 1, &delivered },
				 { { .deliver = deliver }, 0, 2, &delivered },
				 { { .deliver = deliver }, 0, 3, &delivered } };

	CU_ASSERT_EQUAL_FATAL(bh_postbox_init(&box, NULL), 0);
	CU_ASSERT_FALSE(readable(&box, 0));
	CU_ASSERT_PTR_NULL(bh_postbox_take(&box));
	for (int i = 0; i < 3; i++)
		bh_postbox_post(&box, &m[i].message);
	CU_ASSERT_TRUE(readable(&box, 0));
	bh_postbox_deliver(&box);
	CU_ASSERT_EQUAL(delivered, 123);
	CU_ASSERT_FALSE(readable(&box, 0));
	bh_postbox_post(&box, &m[0].message);
	CU_ASSERT_PTR_EQUAL(bh_postbox_take(&box), &m[0].message);
	CU_ASSERT_PTR_NULL(m[0].message.next);
	bh_postbox_fini(&box);
}

/* What is kept back counts: the fd stays readable for it, it stays the oldest, and take() has it too. */
static void gives_some_and_keeps_the_rest(void)
{
	struct bh_postbox box;
	int delivered = 0;
	struct numbered m[7];
	struct bh_message *some;

	CU_ASSERT_EQUAL_FATAL(bh_postbox_init(&box, NULL), 0);
	CU_ASSERT_PTR_NULL(bh_postbox_take_some(&box, 2));
	for (int i = 0; i < 7; i++)
		m[i] = (struct numbered){ { .deliver = deliver }, 0, i + 1, &delivered };
	for (int i = 0; i < 5; i++)
		bh_postbox_post(&box, &m[i].message);
	some = bh_postbox_take_some(&box, 2);
	CU_ASSERT_PTR_EQUAL(some, &m[0].message);
	CU_ASSERT_PTR_EQUAL(some->next, &m[1].message);
	CU_ASSERT_PTR_NULL(m[1].message.next);
	CU_ASSERT_TRUE(readable(&box, 0));
	CU_ASSERT_FALSE(bh_postbox_is_empty(&box));
	some = bh_postbox_take_some(&box, 3); /* exactly what was kept */
	CU_ASSERT_PTR_EQUAL(some, &m[2].message);
	CU_ASSERT_TRUE(bh_postbox_is_empty(&box));
	CU_ASSERT_PTR_NULL(bh_postbox_take(&box)); /* clears the fd */
	CU_ASSERT_FALSE(readable(&box, 0));
	for (int i = 0; i < 6; i++)
		bh_postbox_post(&box, &m[i].message);
	CU_ASSERT_PTR_EQUAL(bh_postbox_take_some(&box, 1), &m[0].message);
	bh_postbox_post(&box, &m[6].message);
	bh_postbox_deliver(&box); /* the kept before the new */
	CU_ASSERT_EQUAL(delivered, 234567);
	CU_ASSERT_TRUE(bh_postbox_is_empty(&box));
	CU_ASSERT_FALSE(readable(&box, 0));
	bh_postbox_fini(&box);
}

#define SENDERS 4
#define EACH 5000

struct sender {
	struct bh_postbox *box;
	struct numbered messages[EACH];
};

static void *send_all(void *arg)
{
	struct sender *sender = arg;

	for (int i = 0; i < EACH; i++)
		bh_postbox_post(sender->box, &sender->messages[i].message);
	return NULL;
}

/* Sleeps on the fd whenever it finds nothing: a lost wake-up would show as a timeout. */
static void wakes_for_every_message(void)
{
	static struct sender senders[SENDERS];
	int next[SENDERS] = { 0 }, n = 0, wrong = 0;
	pthread_t threads[SENDERS];
	struct bh_postbox box;

	CU_ASSERT_EQUAL_FATAL(bh_postbox_init(&box, NULL), 0);
	for (int s = 0; s < SENDERS; s++) {
		senders[s].box = &box;
		for (int i = 0; i < EACH; i++)
			senders[s].messages[i] = (struct numbered){ .sender = s, .number = i };
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[s], NULL, send_all, &senders[s]), 0);
	}
	while (n < SENDERS * EACH && readable(&box, 30000)) {
		struct bh_message *message =
			n % 3 ? bh_postbox_take_some(&box, 7) : bh_postbox_take(&box);

		for (; message; message = message->next, n++) {
			struct numbered *numbered =
				bh_container_of(message, struct numbered, message);

			wrong += next[numbered->sender]++ != numbered->number;
		}
	}
	CU_ASSERT_EQUAL(n, SENDERS * EACH);
	CU_ASSERT_EQUAL(wrong, 0);
	for (int s = 0; s < SENDERS; s++)
		pthread_join(threads[s], NULL);
	bh_postbox_fini(&box);
}

static void on_done(struct bh_request *request)
{
	*(int *)request->done_arg = request->http_status;
	bh_request_free(request);
}

static void requests_come_back(void)
{
	struct bh_postbox inbox, replies;
	struct bh_request *request;
	struct bh_message *message;
	int status = 0;

	CU_ASSERT_EQUAL_FATAL(bh_postbox_init(&inbox, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(bh_postbox_init(&replies, NULL), 0);
	request = bh_request_new(BH_REQUEST_APP_CALL, &replies, on_done, &status);
	CU_ASSERT_PTR_NOT_NULL_FATAL(request);
	request->app = strdup("search");
	request->body = strdup("{}");
	bh_postbox_post(&inbox, &request->message);
	message = bh_postbox_take(&inbox);
	CU_ASSERT_PTR_EQUAL_FATAL(message, &request->message);
	request = bh_container_of(message, struct bh_request, message);
	request->http_status = 200;
	request->reply = strdup("{\"result\": 1}");
	bh_request_reply(request);
	CU_ASSERT_EQUAL(status, 0); /* not on main: on whoever empties the replies */
	bh_postbox_deliver(&replies);
	CU_ASSERT_EQUAL(status, 200);
	CU_ASSERT_PTR_NULL(bh_request_free(NULL));
	bh_postbox_fini(&inbox);
	bh_postbox_fini(&replies);
}

static json_t *render_number(void *arg)
{
	return json_integer(*(int *)arg);
}

static void views_are_found(void)
{
	static struct bh_views views;
	static int seven = 7;
	const struct bh_view *view;
	json_t *json;

	CU_ASSERT_PTR_NULL(bh_views_find(&views, "gil"));
	bh_views_add(&views, "pools", render_number, &seven);
	bh_views_add(&views, "gil", render_number, &seven);
	view = bh_views_find(&views, "gil");
	CU_ASSERT_PTR_NOT_NULL_FATAL(view);
	CU_ASSERT_STRING_EQUAL(view->name, "gil");
	json = view->render(view->arg);
	CU_ASSERT_EQUAL(json_integer_value(json), 7);
	json_decref(json);
	CU_ASSERT_PTR_NULL(bh_views_find(&views, "gi"));
}

static const struct bh_test tests[] = {
	{ "messages keep their order, the fd is cleared", keeps_order },
	{ "some are given, the rest is kept", gives_some_and_keeps_the_rest },
	{ "no message and no wake-up is lost between four senders", wakes_for_every_message },
	{ "a request comes back to whoever asked", requests_come_back },
	{ "views are found by name", views_are_found },
};

BH_TAP_MAIN("post", tests)
